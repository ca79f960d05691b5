// A worker for Node 18 or later: claims by long poll, keeps the lease while it works, settles by its token.
//   TENURE_API=http://127.0.0.1:8400 TENURE_TOKEN=tnr_… node worker.mjs default
const { TENURE_API, TENURE_TOKEN, JOBS = "0", LEASE = "60" } = process.env;
const queue = process.argv[2] ?? "default", worker = `node-${process.pid}`, lease_seconds = Number(LEASE);

async function post(path, body) {
  const answer = await fetch(`${TENURE_API}/api/v1/${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${TENURE_TOKEN}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (answer.status === 204) return null;
  const told = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(told.detail), { code: told.code });
  return told;
}

// Your work. JSON.parse rounds numbers above 2^53; send such values as strings if they matter to you.
async function handle(job, signal) {
  return { echo: job.payload };
}

for (let done = 0; JOBS === "0" || done < Number(JOBS); ) {
  const claimed = await post("claims", { worker, queues: [queue], lease_seconds, wait: 20 }).catch((error) => error);
  if (claimed === null) continue;
  if (claimed instanceof Error) { await new Promise((wake) => setTimeout(wake, 2000)); continue; }
  const { job, token } = claimed.grants[0], stop = new AbortController();
  const keeper = setInterval(async () => {
    const beat = await post("heartbeats", { worker, grants: [{ id: job.id, token }], lease_seconds }).catch(() => null);
    if (beat && (beat.lost.length || beat.cancel.length)) stop.abort();
  }, (lease_seconds * 1000) / 3);
  const end = await handle(job, stop.signal).then(
    (result) => ({ outcome: "complete", result }),
    (error) => ({ outcome: "fail", error: `${error.name}: ${error.message}` }),
  );
  clearInterval(keeper);
  await post("settlements", { results: [{ id: job.id, token, ...end }] }).catch((error) => console.error(error.message));
  done += 1;
}
