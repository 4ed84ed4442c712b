import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { embedMany, generateText, streamText } from 'ai'
import { BAD_KEY, BASE, EMBEDDER, ENDLESS, KEY, LONG_PROMPT, MODEL, PROMPT, UNKNOWN, assert, failure, report, used } from './kit.mjs'

const make = (apiKey) => createOpenAICompatible({ name: 'berth', baseURL: `${BASE}/v1`, apiKey, includeUsage: true })
const berth = make(KEY)
const options = { maxRetries: 0, maxOutputTokens: 6, prompt: PROMPT }

await report(
  {
    async plain() {
      const answer = await generateText({ ...options, model: berth(MODEL) })
      assert.ok(answer.text)
      used(answer.usage.inputTokens, answer.usage.outputTokens)
    },
    async stream() {
      const made = streamText({ ...options, model: berth(MODEL) })
      let text = ''
      for await (const part of made.fullStream) {
        assert.notEqual(part.type, 'error')
        if (part.type === 'text-delta') text += part.text
      }
      assert.ok(text)
      assert.equal(await made.finishReason, 'length')
      const usage = await made.usage
      used(usage.inputTokens, usage.outputTokens)
    },
    async embeddings() {
      const answer = await embedMany({ model: berth.embeddingModel(EMBEDDER), values: ['a cat', 'a dog'], maxRetries: 0 })
      assert.ok(answer.embeddings[1].length > 100)
      used(answer.usage.tokens, 0)
    },
    async errors() {
      const status = async (model, more = {}) => {
        const error = await failure(() => generateText({ ...options, ...more, model }))
        return [error.statusCode, error.isRetryable, error.message]
      }
      assert.deepEqual((await status(make(BAD_KEY)(MODEL))).slice(0, 2), [401, false])
      assert.deepEqual((await status(berth(UNKNOWN))).slice(0, 2), [404, false])
      const long = await status(berth(MODEL), { prompt: LONG_PROMPT })
      assert.equal(long[0], 400)
      assert.match(long[2], /maximum context length/)
    },
    async abort() {
      const stop = new AbortController()
      const made = streamText({
        model: berth(MODEL), prompt: ENDLESS, maxOutputTokens: 500, maxRetries: 0, abortSignal: stop.signal,
        providerOptions: { berth: { ignore_eos: true } }, onError() {},
      })
      for await (const part of made.fullStream) {
        if (part.type === 'text-delta') stop.abort()
      }
      await new Promise((done) => setTimeout(done, 100))
    },
  },
  ['ai', '@ai-sdk/openai-compatible'],
)
