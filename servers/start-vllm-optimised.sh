#!/usr/bin/env bash
# vLLM with chunked prefill and automatic prefix caching switched on, and the token budget that
# vLLM's guide to tuning begins with. Smaller budgets give a better ITL, larger ones a better TTFT.
# Settings: environment variables, listed in vllm-settings.sh; further flags of `vllm serve` as
# arguments.
#
#   MODEL=Qwen/Qwen2.5-7B-Instruct MAX_NUM_BATCHED_TOKENS=2048 servers/start-vllm-optimised.sh
set -euo pipefail
: "${CHUNKED_PREFILL:=on}" "${PREFIX_CACHING:=on}"
# shellcheck source=servers/vllm-settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/vllm-settings.sh"
start_vllm "$@"
