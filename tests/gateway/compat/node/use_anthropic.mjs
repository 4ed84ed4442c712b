import Anthropic from '@anthropic-ai/sdk'
import { BAD_KEY, BASE, EMBEDDER, ENDLESS, KEY, LONG_PROMPT, MODEL, PROMPT, UNKNOWN, assert, failure, report, used } from './kit.mjs'

const make = (apiKey) => new Anthropic({ apiKey, baseURL: BASE, maxRetries: 0 })
const client = make(KEY)
const messages = [{ role: 'user', content: PROMPT }]
const whole = (usage) => usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0)

await report(
  {
    async models() {
      const ids = []
      for await (const model of client.models.list()) ids.push(model.id)
      assert.deepEqual(ids.sort(), [EMBEDDER, MODEL].sort())
    },
    async plain() {
      const answer = await client.messages.create({ model: MODEL, messages, max_tokens: 6 })
      assert.ok(answer.content[0].text)
      assert.equal(answer.stop_reason, 'max_tokens')
      assert.match(answer._request_id, /^req_/)
      used(whole(answer.usage), answer.usage.output_tokens)
    },
    async count_tokens() {
      assert.ok((await client.messages.countTokens({ model: MODEL, messages })).input_tokens > 0)
      used(0, 0)
    },
    async stream() {
      const made = client.messages.stream({ model: MODEL, messages, max_tokens: 6 })
      const final = await made.finalMessage()
      assert.ok(final.content[0].text)
      used(whole(final.usage), final.usage.output_tokens)
    },
    async errors() {
      const stranger = await failure(() => make(BAD_KEY).messages.create({ model: MODEL, messages, max_tokens: 1 }))
      assert.ok(stranger instanceof Anthropic.AuthenticationError)
      const unknown = await failure(() => client.messages.create({ model: UNKNOWN, messages, max_tokens: 1 }))
      assert.ok(unknown instanceof Anthropic.NotFoundError)
      assert.match(unknown.requestID, /^req_/)
      const long = [{ role: 'user', content: LONG_PROMPT }]
      const found = await failure(() => client.messages.create({ model: MODEL, messages: long, max_tokens: 5 }))
      assert.ok(found instanceof Anthropic.BadRequestError)
      assert.equal(found.error.error.type, 'invalid_request_error')
    },
    async abort() {
      const endless = { model: MODEL, messages: [{ role: 'user', content: ENDLESS }], stream: true, max_tokens: 500 }
      const made = await client.messages.create(endless)
      for await (const event of made) if (event.type === 'content_block_delta') break
      made.controller.abort()
      await new Promise((done) => setTimeout(done, 100))
    },
  },
  ['@anthropic-ai/sdk'],
)
