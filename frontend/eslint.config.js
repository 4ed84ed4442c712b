import jsxA11y from "eslint-plugin-jsx-a11y";
import reactHooks from "eslint-plugin-react-hooks";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist", "node_modules", "public", "src/shared/api/schema.d.ts", "eslint.config.js"] },
  ...tseslint.configs.strictTypeChecked,
  jsxA11y.flatConfigs.recommended,
  {
    plugins: { "react-hooks": reactHooks },
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      "react-hooks/rules-of-hooks": "error",
      "react-hooks/exhaustive-deps": "error",
      "no-restricted-globals": ["error", "confirm", "alert", "prompt"],
      "max-lines": ["error", { max: 320, skipBlankLines: true }],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      "@typescript-eslint/no-misused-promises": ["error", { checksVoidReturn: { attributes: false } }],
    },
  },
  {
    // Money never becomes a float: nothing in the money module may parse numbers.
    files: ["src/shared/format/money.ts"],
    rules: { "no-restricted-syntax": ["error", { selector: "CallExpression[callee.name=/^(parseFloat|Number)$/]", message: "Money is BigInt." }] },
  },
  { files: ["src/shared/i18n/{en,zh}.ts"], rules: { "max-lines": "off" } },
);
