// What the scripts here share. Each is one client: it runs its checks and prints what it found as one JSON object.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'

export { assert }
export const BASE = process.env.BERTH_URL // without /v1
export const KEY = process.env.BERTH_KEY
export const BAD_KEY = 'bth_sk_' + 'z'.repeat(43)
export const MODEL = 'acme/model'
export const EMBEDDER = 'acme/embedder'
export const UNKNOWN = 'acme/unknown'
export const PROMPT = 'Say hello.'
export const LONG_PROMPT = 'word '.repeat(3000) // beyond the model's context
export const ENDLESS = 'Count from one to five hundred, one number a line: 1, 2, 3, 4,'

const usage = []
export const used = (prompt, completion) => usage.push([prompt, completion])

export async function failure(run) {
  try {
    await run()
  } catch (error) {
    return error
  }
  throw new Error('nothing was thrown')
}

export async function report(checks, packages) {
  const results = {}
  for (const [name, run] of Object.entries(checks)) {
    try {
      await run()
      results[name] = 'ok'
    } catch (error) {
      results[name] = String(error?.stack ?? error).slice(0, 2000)
    }
  }
  const version = (name) => JSON.parse(readFileSync(new URL(`./node_modules/${name}/package.json`, import.meta.url))).version
  console.log(
    JSON.stringify({ versions: Object.fromEntries(packages.map((name) => [name, version(name)])), checks: results, usage }),
  )
  process.exit(0)
}
