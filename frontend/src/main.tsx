import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import "./app/tokens.css";
import "./app/base.css";
import "./app/shell.css";
import "./shared/ui/ui.css";
import { App } from "./app/App";

const root = document.getElementById("root");
if (root === null) throw new Error("The page has no #root element.");
createRoot(root).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
