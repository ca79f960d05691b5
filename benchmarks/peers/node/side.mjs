// What both Node peers share: the verbs that benchmarks/peers/node_side.py asks for, one JSON line each.
// A peer hands over { open(url) } whose answer has prepare, one(i), bulk(numbers), close; and work(order, tally).
import fs from 'node:fs'
import readline from 'node:readline'
import { createRequire } from 'node:module'
import { Tally } from './tally.mjs'

export const need = createRequire(process.env.BENCH_NODE_FOLDER + '/')
export const version = name => need(`${name}/package.json`).version
const pad = 'x'.repeat(180)
export const payload = i => ({ i, pad })

const BULK = 1000
const now = () => process.hrtime.bigint()
const range = (begin, end) => Array.from({ length: end - begin }, (_, k) => begin + k)

const verbs = {
  async prepare (client) {
    await client.prepare()
    return {}
  },
  async each (client, { jobs }) {
    const begun = now()
    for (let i = 0; i < jobs; i++) await client.one(i)
    return { seconds: Number(now() - begun) / 1e9 }
  },
  async bulk (client, { jobs }) {
    const begun = now()
    for (let begin = 0; begin < jobs; begin += BULK) {
      await client.bulk(range(begin, Math.min(jobs, begin + BULK)))
    }
    return { seconds: Number(now() - begun) / 1e9 }
  },
  async one (client, { i }) {
    const called = now()
    await client.one(i)
    return { called: String(called), returned: String(now()) }
  }
}

export async function main (peer) {
  if (process.argv[2] === 'worker') {
    const order = JSON.parse(process.argv[3])
    const tally = new Tally(order)
    process.once('SIGTERM', () => { tally.finish(); process.exit(0) })
    await peer.work(order, tally)
    return
  }
  const answer = found => fs.writeSync(1, JSON.stringify(found) + '\n')
  let client
  for await (const line of readline.createInterface({ input: process.stdin })) {
    try {
      const asked = JSON.parse(line)
      client ??= await peer.open(asked.url)
      answer({ ok: true, ...await verbs[asked.verb](client, asked) })
    } catch (error) {
      answer({ ok: false, error: String(error?.message ?? error) })
    }
  }
  await client?.close()
  process.exit(0)
}
