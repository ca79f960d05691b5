// pg-boss: batches of 500, four local workers, burst while batches are full, LISTEN/NOTIFY on, supervision off.
// Its handler is called once per batch and completes the batch as one.
import { main, need, payload } from './side.mjs'

const { PgBoss } = need('pg-boss')
const QUEUE = 'bench'

async function start (url, more = {}) {
  const boss = new PgBoss({ connectionString: url, supervise: false, schedule: false, ...more })
  boss.on('error', error => console.error(error))
  await boss.start()
  return boss
}

async function open (url) {
  const boss = await start(url, { max: 2 })
  return {
    prepare: () => boss.createQueue(QUEUE, { notify: true, retryLimit: 2, retryDelay: 0, retryBackoff: false }),
    one: i => boss.send(QUEUE, payload(i)),
    bulk: numbers => boss.insert(QUEUE, numbers.map(i => ({ data: payload(i) }))),
    close: () => boss.stop({ graceful: false })
  }
}

async function work (order, tally) {
  const boss = await start(order.url, { useListenNotify: true })
  const options = { batchSize: 500, localConcurrency: 4, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
  await tally.readyAndWait()
  await boss.work(QUEUE, options, async jobs => {
    for (const job of jobs) tally.started(job.data.i)
  })
}

await main({ open, work })
