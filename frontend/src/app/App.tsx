import { QueryClientProvider } from "@tanstack/react-query";
import { useState } from "react";
import { newQueryClient } from "@/shared/api/cache";
import { I18nProvider } from "@/shared/i18n";
import { ToastProvider } from "@/shared/ui/Toasts";
import { ErrorBoundary } from "./ErrorBoundary";
import { Routes } from "./routes";

export function App() {
  const [client] = useState(newQueryClient);
  return (
    <I18nProvider>
      <ErrorBoundary>
        <QueryClientProvider client={client}>
          <ToastProvider>
            <Routes />
          </ToastProvider>
        </QueryClientProvider>
      </ErrorBoundary>
    </I18nProvider>
  );
}
