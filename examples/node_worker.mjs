// A worker in Node: node examples/node_worker.mjs "$TENURE_URL". It needs `npm install pg`, the profile `substrate`
// (tenure profile install substrate) with its gates open, and a login with the role tenure_worker.
import { createRequire } from 'node:module'

const pg = createRequire(`${process.env.NODE_MODULES ?? process.cwd()}/`)('pg')
const client = new pg.Client({ connectionString: process.argv[2] ?? process.env.TENURE_URL })
await client.connect()
const owner = `node-${process.pid}`
const call = async (fn, ...args) => {
  const places = args.map((_, i) => `$${i + 1}`).join(', ')
  return (await client.query(`SELECT substrate.${fn}(${places}) AS answer`, args)).rows[0].answer
}

await call('fn_job_enqueue', 'greet', `greet-${process.pid}`, 'node', { name: 'Ada' })
for (let job; (job = (await call('fn_job_claim', owner, ['greet'])).job); ) {
  await call('fn_queue_heartbeat_tick', owner, 'external_worker', 'ok', job.job_id, owner, {}, job.token)
  const settle = job.attempts === 1
    ? call('fn_job_fail_or_retry', job.job_id, owner, 'not in the mood', 0, job.token)
    : call('fn_job_ack', job.job_id, owner, { said: `Hello ${job.payload_json.name}` }, job.token)
  console.log(job.attempts, (await settle).state)
}
const { job_id } = await call('fn_job_enqueue', 'greet', `hopeless-${process.pid}`, 'node')
const { token } = (await call('fn_job_claim', owner, ['greet'])).job
console.log((await call('fn_job_move_to_dead_letter', job_id, 'nobody to greet', owner, token)).state)
await client.end()
