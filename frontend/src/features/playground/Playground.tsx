import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import { toApiError } from "@/shared/api/client";
import { count, duration, rough } from "@/shared/format/number";
import { useI18n } from "@/shared/i18n";
import { useOrg } from "@/shared/session";
import { Button } from "@/shared/ui/Button";
import { useErrorText } from "@/shared/ui/ErrorNotice";
import { Input, TextArea } from "@/shared/ui/Field";
import { Notice } from "@/shared/ui/Notice";
import { Card } from "@/shared/ui/Page";
import { Facts } from "@/shared/ui/Table";
import { ChatError, type ChatMessage, type ChatRequest, type Measured, NOTHING, streamChat } from "./chat";
import { usePlaygroundKey } from "./usePlaygroundKey";

interface Props {
  model: string; // "my-org/name"
  chat: boolean;
  blocked: string | null; // why nothing can be sent now
}

interface Failure {
  code: string;
  message: string;
  requestId: string | null;
  partial: boolean;
}

type Phase = "idle" | "answering" | "done" | "stopped" | "failed";

/** Nothing here is stored anywhere: state, key and answers live in this component and end with it. */
export function Playground({ model, chat, blocked }: Props) {
  const { t } = useI18n();
  const [messages, setMessages] = useState<ChatMessage[]>([]);
  const [answer, setAnswer] = useState("");
  const [prompt, setPrompt] = useState("");
  const [settings, setSettings] = useState({ system: "", temperature: "0.7", maxTokens: "256" });
  const [phase, setPhase] = useState<Phase>("idle");
  const [measured, setMeasured] = useState<Measured>(NOTHING);
  const [failure, setFailure] = useState<Failure | null>(null);
  const run = useRun();
  const describe = useFailure();
  const problem = checkSettings(settings);

  const send = async () => {
    const content = prompt.trim();
    if (content === "" || phase === "answering" || blocked !== null || problem) return;
    const asked: ChatMessage[] = [...messages, { role: "user", content }];
    setMessages(asked);
    setPrompt("");
    setAnswer("");
    setFailure(null);
    setMeasured(NOTHING);
    setPhase("answering");
    let text = "";
    const outcome = await run.start(
      { model, chat, messages: withSystem(settings.system, asked), temperature: decimal(settings.temperature), maxTokens: whole(settings.maxTokens) },
      {
        onText: (piece) => {
          text += piece;
          setAnswer(text);
        },
        onMeasured: setMeasured,
      },
    );
    if (text !== "") setMessages([...asked, { role: "assistant", content: text }]);
    setAnswer("");
    setPhase(outcome.phase);
    if (outcome.phase === "failed") setFailure(describe(outcome.error, text !== ""));
  };
  const clear = () => {
    setMessages([]);
    setMeasured(NOTHING);
    setFailure(null);
    setPhase("idle");
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape" && phase === "answering") run.stop();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void send();
    }
  };
  /** Enter sends, Shift + Enter is a new line. The Enter that ends an input method's composition belongs to the word. */
  const onPromptKey = (event: KeyboardEvent) => {
    const plain = event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (!plain || event.nativeEvent.isComposing) return;
    event.preventDefault();
    void send();
  };
  return (
    // eslint-disable-next-line jsx-a11y/no-static-element-interactions -- shortcuts only; each has a button
    <div className="grid-deploy" onKeyDown={onKeyDown}>
      <Settings values={settings} problem={problem} chat={chat} onChange={setSettings} measured={measured} phase={phase} />
      <Card title={t("playground.title")} actions={messages.length > 0 && phase !== "answering" ? <Button size="small" kind="quiet" onClick={clear}>{t("playground.clear")}</Button> : null}>
        <div className="stack">
          <Conversation messages={messages} answer={answer} phase={phase} />
          {failure ? (
            <Notice tone="danger" title={t("playground.failed")} role="alert">
              <p>{failure.message}</p>
              {failure.partial ? <p>{t("playground.failedMidway")}</p> : null}
              <p className="small muted">
                {t("common.code")}: <code>{failure.code}</code>
                {failure.requestId ? <> · {t("common.requestId")}: <code>{failure.requestId}</code></> : null}
              </p>
            </Notice>
          ) : null}
          {blocked !== null ? <Notice tone="info">{blocked}</Notice> : null}
          <TextArea label={t("playground.prompt")} help={t("playground.sendHint")} rows={3} placeholder={t("playground.placeholder")} value={prompt} onFocus={blocked === null ? run.prepare : undefined} onKeyDown={onPromptKey} onChange={(event) => setPrompt(event.target.value)} />
          <div className="row">
            {phase === "answering" ? (
              <Button kind="danger" onClick={run.stop}>{t("playground.stop")}</Button>
            ) : (
              <Button kind="primary" blocked={blocked} onClick={() => void send()}>{t("playground.send")}</Button>
            )}
          </div>
          <p className="small muted">{t("playground.note")}</p>
        </div>
      </Card>
    </div>
  );
}

function Conversation({ messages, answer, phase }: { messages: readonly ChatMessage[]; answer: string; phase: Phase }) {
  const { t } = useI18n();
  const last = messages.at(-1);
  const spoken = phase === "answering" ? t("playground.answering") : phase !== "idle" && last?.role === "assistant" ? last.content : "";
  return (
    <>
      {/* The growing text is silent; readers hear once that it begins and once the whole. */}
      <div className="messages" aria-live="off" aria-busy={phase === "answering"}>
        {messages.length === 0 ? <p className="muted">{t("playground.empty")}</p> : null}
        {messages.map((message, index) => (
          <Bubble key={index} speaker={message.role} text={message.content} />
        ))}
        {phase === "answering" ? <Bubble speaker="assistant" text={answer === "" ? "…" : answer} /> : null}
      </div>
      <div className="visually-hidden" aria-live="polite" role="status">{spoken}</div>
    </>
  );
}

function Bubble({ speaker, text }: { speaker: ChatMessage["role"]; text: string }) {
  const { t } = useI18n();
  const who = t(speaker === "user" ? "playground.you" : "playground.model");
  return (
    <article className="message" data-role={speaker} aria-label={who}>
      <div className="message-who">{who}</div>
      <div dir="auto">{text}</div>
    </article>
  );
}

interface SettingsValues {
  system: string;
  temperature: string;
  maxTokens: string;
}

function Settings({ values, problem, chat, onChange, measured, phase }: { values: SettingsValues; problem: "temperature" | "maxTokens" | null; chat: boolean; onChange: (values: SettingsValues) => void; measured: Measured; phase: Phase }) {
  const { t, locale, lookup } = useI18n();
  const finish =
    phase === "stopped" ? t("playground.stopped") : measured.finishReason === null ? "–" : (lookup(`playground.finish.${measured.finishReason}`) ?? measured.finishReason);
  return (
    <div className="stack">
      <Card title={t("playground.parameters")}>
        <div className="stack">
          {chat ? <TextArea label={t("playground.system")} rows={2} value={values.system} onChange={(event) => onChange({ ...values, system: event.target.value })} /> : null}
          <div className="field-row">
            <Input label={t("playground.temperature")} inputMode="decimal" error={problem === "temperature" ? "0 – 2" : null} value={values.temperature} onChange={(event) => onChange({ ...values, temperature: event.target.value })} />
            <Input label={t("playground.maxTokens")} inputMode="numeric" error={problem === "maxTokens" ? t("deploy.invalidNumber", { min: 1, max: 1_000_000 }) : null} value={values.maxTokens} onChange={(event) => onChange({ ...values, maxTokens: event.target.value })} />
          </div>
        </div>
      </Card>
      <Card>
        <Facts
          items={[
            [t("playground.ttft"), duration(measured.firstTokenMs)],
            [t("playground.speed"), measured.tokensPerSecond === null ? "–" : t("plan.speedUnit", { value: rough(measured.tokensPerSecond, locale) })],
            [t("playground.tokens"), measured.completionTokens === null ? "–" : t("playground.tokensDetail", { input: count(measured.promptTokens, locale), output: count(measured.completionTokens, locale) })],
            [t("playground.finish"), finish],
            [t("common.requestId"), <code key="id">{measured.requestId ?? "–"}</code>],
          ]}
        />
      </Card>
    </div>
  );
}

function withSystem(system: string, messages: readonly ChatMessage[]): ChatMessage[] {
  return system.trim() === "" ? [...messages] : [{ role: "system", content: system.trim() }, ...messages];
}

function decimal(text: string): number | null {
  return /^\d+(\.\d+)?$/.test(text.trim()) ? Number(text) : null;
}

function whole(text: string): number | null {
  return /^\d{1,7}$/.test(text.trim()) ? Number(text) : null;
}

function checkSettings({ temperature, maxTokens }: SettingsValues): "temperature" | "maxTokens" | null {
  const warmth = decimal(temperature);
  if (temperature.trim() !== "" && (warmth === null || warmth > 2)) return "temperature";
  const most = whole(maxTokens);
  if (maxTokens.trim() !== "" && (most === null || most < 1 || most > 1_000_000)) return "maxTokens";
  return null;
}

type Outcome = { phase: "done" | "stopped" } | { phase: "failed"; error: unknown };
type Handlers = Parameters<typeof streamChat>[1];

/** One answer at a time; leaving the page stops it. */
function useRun() {
  const { slug, me } = useOrg();
  const key = usePlaygroundKey(slug);
  const running = useRef<AbortController | null>(null);
  useEffect(() => () => running.current?.abort(), []);
  const start = async (request: Omit<ChatRequest, "base" | "secret">, handlers: Handlers): Promise<Outcome> => {
    const controller = new AbortController();
    running.current = controller;
    try {
      const secret = await key.get();
      controller.signal.throwIfAborted();
      await streamChat({ ...request, base: me.api_base, secret }, handlers, controller.signal);
      return { phase: "done" };
    } catch (error) {
      if (error instanceof ChatError && error.status === 401) key.drop(); // revoked meanwhile: the next try makes another
      return controller.signal.aborted ? { phase: "stopped" } : { phase: "failed", error };
    } finally {
      running.current = null;
    }
  };
  return { start, stop: () => running.current?.abort(), prepare: () => void key.get().catch(() => undefined) };
}

function useFailure(): (error: unknown, partial: boolean) => Failure {
  const { t } = useI18n();
  const { me } = useOrg();
  const text = useErrorText();
  return (error, partial) => {
    if (error instanceof ChatError) {
      const message = error.code === "unreachable" ? t("playground.unreachable", { base: me.api_base }) : error.message;
      return { code: error.code, message, requestId: error.requestId, partial };
    }
    const known = toApiError(error);
    return { code: known.code, message: text(known), requestId: known.requestId, partial };
  };
}
