#!/bin/sh
# The service by curl. Start it first: bayestta serve --model lit --store ./store
# Usage: examples/serve_curl.sh photo.jpg
set -eu
url=${BAYESTTA_URL:-http://127.0.0.1:8000}
photo=${1:?give an image file}

echo "Make an adapter (409 where it exists):"
curl -s "$url/v1/adapters" -H 'content-type: application/json' \
  -d '{"id": "cam-1", "classes": ["cat", "dog", "horse"]}'; echo

echo "Label a file, and learn from it; the request id makes a repetition harmless:"
curl -s "$url/v1/adapters/cam-1/classify" -H 'x-request-id: photo-1' -F "files=@$photo"; echo

echo "The same by the Open Inference Protocol, without learning:"
printf '{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["%s"]}],
  "parameters": {"adapt": false}}' "$(base64 < "$photo" | tr -d '\n')" |
  curl -s "$url/v2/models/cam-1/infer" -H 'content-type: application/json' -d @-; echo

echo "Tell the truth about it:"
curl -s "$url/v1/adapters/cam-1/feedback" -H 'content-type: application/json' \
  -d '{"request_id": "photo-1", "index": 0, "label": "dog"}'; echo

echo "Save what was learnt, and look at the numbers:"
curl -s "$url/v1/adapters/cam-1/state" -o cam-1.state
curl -s "$url/metrics" | grep '^bayestta_images_total'
