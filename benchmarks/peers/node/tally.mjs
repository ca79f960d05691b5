// The worker's half of benchmarks/peers/tally.py: the same words, written to the same file.
// Node cannot map a file, so counts go out every two milliseconds and the job starts when the worker ends.
import fs from 'node:fs'

const GO = 0
const FIRST_SLOT = 8
const SLOT_WORDS = 8
const STARTS = 128

const now = () => process.hrtime.bigint()

export class Tally {
  constructor (order) {
    this.file = fs.openSync(order.tally, 'r+')
    this.jobs = order.jobs
    this.latency = order.do === 'W4'
    this.own = 8 * (FIRST_SLOT + SLOT_WORDS * order.slot)
    this.slot = new BigInt64Array(3)
    this.count = 0
    this.written = 0
    this.starts = new BigInt64Array(order.jobs)
  }

  async readyAndWait () {
    this.slot[0] = 1n
    this.#writeSlot()
    const go = new BigInt64Array(1)
    while (go[0] === 0n) {
      await new Promise(resolve => setTimeout(resolve, 1))
      fs.readSync(this.file, go, 0, 8, 8 * GO)
    }
    setInterval(() => this.#publish(), 2)
  }

  started (i) {
    const moment = now()
    if (this.count === 0) this.slot[1] = moment
    this.count += 1
    if (this.latency) fs.writeSync(this.file, new BigInt64Array([moment]), 0, 8, 8 * (STARTS + i))
    if (this.starts[i] === 0n) this.starts[i] = moment
  }

  // Two workers share the file: only words of jobs that started here may be written.
  finish () {
    this.#publish()
    let begin = 0
    while (begin < this.jobs) {
      if (this.starts[begin] === 0n) { begin += 1; continue }
      let end = begin + 1
      while (end < this.jobs && this.starts[end] !== 0n) end += 1
      fs.writeSync(this.file, this.starts.subarray(begin, end), 0, undefined, 8 * (STARTS + begin))
      begin = end
    }
  }

  #publish () {
    if (this.count === this.written) return
    this.slot[2] = BigInt(this.count)
    this.#writeSlot()
    this.written = this.count
  }

  #writeSlot () {
    fs.writeSync(this.file, this.slot, 0, this.slot.byteLength, this.own)
  }
}
