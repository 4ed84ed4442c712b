import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { format, type Key, type Message } from "@/shared/i18n";
import { en } from "@/shared/i18n/en";
import { zh } from "@/shared/i18n/zh";

const texts = (message: Message) => (typeof message === "string" ? [message] : [message.one, message.other]);
const names = (text: string) => [...text.matchAll(/\{(\w+)\}/g)].map(([, name]) => name).sort();
const keys = Object.keys(en) as Key[];

function sources(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return entry.name === "i18n" ? [] : sources(path);
    return [readFileSync(path, "utf8")];
  });
}

describe("catalogues", () => {
  it("have the same keys", () => {
    expect(Object.keys(zh).sort()).toEqual([...keys].sort());
  });

  it("have the same parameters and no empty text", () => {
    for (const key of keys) {
      const wanted = names(texts(en[key]).at(-1) ?? "");
      for (const text of [...texts(en[key]), ...texts(zh[key])]) {
        expect(text.trim(), key).not.toBe("");
        expect(names(text), key).toEqual(wanted);
      }
    }
  });

  it("hold no text that nothing shows", () => {
    const code = sources(fileURLToPath(new URL("../../src", import.meta.url))).join("\n");
    // `state.${…}` reaches every key that begins so; `kind.code` of the planner's messages and `start.step.text` are built of two parts.
    const built = [...code.matchAll(/`([a-zA-Z.]+\.)\$\{/g)].map(([, prefix = ""]) => prefix);
    const reached = (key: string) => code.includes(`"${key}"`) || [...built, "reason.", "reject.", "change.", "survey.", "remedy."].some((prefix) => key.startsWith(prefix));
    expect(keys.filter((key) => !reached(key))).toEqual([]);
  });

  it("have no English sentence left in Chinese", () => {
    // What stays Latin is a name, a unit or code: never two English words of prose in a row outside the list.
    const allowed = /make [a-z]+|Berth|API|JSON|CSV|curl|[Bb]ase URL|SDK|openai|OpenAI|SmolLM2-135M-Instruct|Ctrl \+ Enter|Esc|KV|token|tok|ID|web-prod|infer|stop|length|BERTH_API_KEY|v1\/completions|\{\w+\}/g;
    for (const key of keys) {
      for (const text of texts(zh[key])) expect(text.replace(allowed, "")).not.toMatch(/[A-Za-z]{3,} +[A-Za-z]{3,}/);
    }
  });

  it("use the glossary", () => {
    expect([zh["nav.deployments"], zh["deployments.revision"], zh["deployment.replica"], zh["models.artefacts"], zh["plan.title"], zh["playground.ttft"]]).toEqual(["部署", "修订版", "副本", "模型产物", "部署方案", "首 token 延迟"]);
  });

  it("fill parameters in and choose the plural", () => {
    expect(format("en", "keys.scope.some", { n: 1 })).toBe("1 deployment");
    expect(format("en", "keys.scope.some", { n: 1200 })).toBe("1,200 deployments");
    expect(format("zh", "keys.scope.some", { n: 2 })).toBe("2 个部署");
    expect(format("en", "keys.activeOn", { applied: 3, total: 3 })).toBe("active on 3 of 3 gateways");
  });
});
