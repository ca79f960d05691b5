// graphile-worker: 24 concurrent jobs, local queue of 500, completions batched without delay.
import { main, need, payload } from './side.mjs'

const { makeWorkerUtils, run, Logger } = need('graphile-worker')
const silent = new Logger(() => () => {})

async function open (url) {
  const utils = await makeWorkerUtils({ connectionString: url, logger: silent, maxPoolSize: 2 })
  return {
    prepare: () => utils.migrate(),
    one: i => utils.addJob('noop', payload(i)),
    bulk: numbers => utils.addJobs(numbers.map(i => ({ identifier: 'noop', payload: payload(i) }))),
    close: () => utils.release()
  }
}

async function work (order, tally) {
  const noop = async ({ i }) => tally.started(i)
  // run() claims at once, so it is called only when all workers are there.
  await tally.readyAndWait()
  await run({
    preset: {
      worker: {
        connectionString: order.url,
        maxPoolSize: 26,
        concurrentJobs: 24,
        pollInterval: 2000,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
        logger: silent
      }
    },
    taskList: { noop }
  })
}

await main({ open, work })
