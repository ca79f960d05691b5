#!/usr/bin/env bash
# A worker in bash: claims by long poll, keeps the lease while it works, settles by its token. Needs curl and jq.
#   TENURE_API=http://127.0.0.1:8400 TENURE_TOKEN=tnr_… ./worker.sh default
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
queue=${1:-default} worker="bash-$$" jobs=${JOBS:-0} lease=${LEASE:-60} done_jobs=0

post() { # path, body: the answer's body; empty for 204
    curl --silent --show-error --fail-with-body --max-time 40 --config <(printf 'header = "Authorization: Bearer %s"' "$TENURE_TOKEN") \
        --header 'Content-Type: application/json' --data "$2" "$TENURE_API/api/v1/$1"
}

keep() { # id, token, pid of the work: extends the lease; ends the work if the job is lost or cancelled
    while sleep "$((lease / 3))"; do
        beat=$(post heartbeats "$(jq -nc --arg w "$worker" --arg i "$1" --arg t "$2" --argjson l "$lease" \
            '{worker: $w, grants: [{id: $i, token: $t}], lease_seconds: $l}')") || continue
        jq -e '.held | length == 1' <<<"$beat" >/dev/null && jq -e '.cancel == []' <<<"$beat" >/dev/null || kill "$3"
    done
}

handle() { jq -c '{echo: .payload}' <<<"$1"; } # your work: the job as JSON in, the result as JSON out

while [ "$jobs" -eq 0 ] || [ "$done_jobs" -lt "$jobs" ]; do
    answer=$(post claims "$(jq -nc --arg w "$worker" --arg q "$queue" --argjson l "$lease" \
        '{worker: $w, queues: [$q], lease_seconds: $l, wait: 20}')") || { sleep 2; continue; }
    [ -n "$answer" ] || continue
    job=$(jq -c '.grants[0].job' <<<"$answer") token=$(jq -r '.grants[0].token' <<<"$answer") id=$(jq -r .id <<<"$job")
    handle "$job" >"$folder/out" 2>"$folder/err" & work=$!
    keep "$id" "$token" "$work" & keeper=$!
    if wait "$work"; then
        end=$(jq -c --arg i "$id" --arg t "$token" '{results: [{id: $i, token: $t, outcome: "complete", result: .}]}' "$folder/out")
    else
        end=$(jq -Rsc --arg i "$id" --arg t "$token" '{results: [{id: $i, token: $t, outcome: "fail", error: ("exit: " + .)}]}' "$folder/err")
    fi
    kill "$keeper" 2>/dev/null || true
    post settlements "$end" >/dev/null || echo "job $id was handed on; its end was not saved" >&2
    done_jobs=$((done_jobs + 1))
done
