import { fileURLToPath } from "node:url";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// In development the dashboard is served by Vite and everything under /api goes to a running Berth.
const berth = process.env["BERTH_PUBLIC_URL"] ?? "http://127.0.0.1:8000";

export default defineConfig({
  base: "/",
  plugins: [react()],
  resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
  build: {
    outDir: "dist",
    assetsDir: "assets",
    assetsInlineLimit: 0, // the content security policy allows no inline data for scripts and styles
    sourcemap: false,
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"], // all know light-dark()
  },
  server: { host: "127.0.0.1", proxy: { "/api": { target: berth, changeOrigin: true } } },
  test: { include: ["tests/**/*.test.ts", "tests/**/*.test.tsx"], environment: "node" },
});
