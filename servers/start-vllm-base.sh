#!/usr/bin/env bash
# vLLM with chunked prefill and automatic prefix caching switched off: what an arm with either is
# compared with. Settings: environment variables, listed in vllm-settings.sh; further flags of
# `vllm serve` as arguments.
#
#   MODEL=Qwen/Qwen2.5-7B-Instruct MAX_MODEL_LEN=32768 servers/start-vllm-base.sh
set -euo pipefail
: "${CHUNKED_PREFILL:=off}" "${PREFIX_CACHING:=off}"
# shellcheck source=servers/vllm-settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/vllm-settings.sh"
start_vllm "$@"
