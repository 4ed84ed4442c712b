/** What the "Call it" panel gives to copy. The key stays a placeholder: a secret is never put into a page after it was shown. */
export type Language = "curl" | "python" | "javascript";

const QUESTION = "Say hello in five words.";

export function snippet(language: Language, base: string, model: string, chat: boolean): string {
  return { curl, python, javascript }[language](base, model, chat);
}

function body(model: string, chat: boolean): string {
  const ask = chat ? `"messages": [{"role": "user", "content": "${QUESTION}"}]` : `"prompt": "${QUESTION}", "max_tokens": 64`;
  return `{"model": "${model}", ${ask}, "stream": true}`;
}

function curl(base: string, model: string, chat: boolean): string {
  return [
    `curl -N ${base}/${chat ? "chat/completions" : "completions"} \\`,
    `  -H "Authorization: Bearer $BERTH_API_KEY" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  -d '${body(model, chat)}'`,
  ].join("\n");
}

function python(base: string, model: string, chat: boolean): string {
  const call = chat
    ? ["stream = client.chat.completions.create(", `    model="${model}",`, `    messages=[{"role": "user", "content": "${QUESTION}"}],`, "    stream=True,", ")"]
    : ["stream = client.completions.create(", `    model="${model}",`, `    prompt="${QUESTION}",`, "    max_tokens=64,", "    stream=True,", ")"];
  const piece = chat ? "chunk.choices[0].delta.content" : "chunk.choices[0].text";
  return [
    "import os",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${base}", api_key=os.environ["BERTH_API_KEY"])`,
    ...call,
    "for chunk in stream:",
    "    if chunk.choices:",
    `        print(${piece} or "", end="", flush=True)`,
  ].join("\n");
}

function javascript(base: string, model: string, chat: boolean): string {
  const call = chat
    ? ["const stream = await client.chat.completions.create({", `  model: "${model}",`, `  messages: [{ role: "user", content: "${QUESTION}" }],`, "  stream: true,", "});"]
    : ["const stream = await client.completions.create({", `  model: "${model}",`, `  prompt: "${QUESTION}",`, "  max_tokens: 64,", "  stream: true,", "});"];
  const piece = chat ? "chunk.choices[0]?.delta.content" : "chunk.choices[0]?.text";
  return [
    'import OpenAI from "openai";',
    "",
    `const client = new OpenAI({ baseURL: "${base}", apiKey: process.env.BERTH_API_KEY });`,
    ...call,
    "for await (const chunk of stream) {",
    `  process.stdout.write(${piece} ?? "");`,
    "}",
  ].join("\n");
}
