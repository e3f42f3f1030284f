#!/bin/sh
# Say that the machine of a node will go: notify.sh NODE KIND [TIME [TEXT]]
#   GRACECTL_URL=https://gracectl.example.com GRACECTL_SECRET_FILE=secret notify.sh worker-7 maintenance 2026-01-01T06:00:00Z "fan 3 has failed"
# For what a BMC, a job of the data center or a person knows; docs/interruptions.md has the contract. Needs curl and openssl.
set -eu
: "${GRACECTL_URL:?is the address of gracectl}" "${GRACECTL_SECRET_FILE:?is a file with the secret}"

escaped() {
  printf '%s' "$1" | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g'
}

at=null
[ -z "${3:-}" ] || at="\"$(escaped "$3")\""
body="{\"node\":\"$(escaped "$1")\",\"kind\":\"$(escaped "$2")\",\"at\":$at,\"text\":\"$(escaped "${4:-}")\"}"
id="notify-$(openssl rand -hex 12)"
now=$(date +%s)
key=$(head -n 1 "$GRACECTL_SECRET_FILE" | sed 's/^whsec_//' | openssl base64 -d -A | od -An -v -tx1 | tr -d ' \n')
signature=$(printf '%s' "$id.$now.$body" | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | openssl base64 -A)

# Repeated while the answer is 5xx; a repeat changes nothing.
curl --fail-with-body --silent --show-error --retry 10 --retry-delay 5 --max-time 30 \
  -H 'content-type: application/json' -H "webhook-id: $id" -H "webhook-timestamp: $now" \
  -H "webhook-signature: v1,$signature" --data-raw "$body" "$GRACECTL_URL/v1/interruptions"
