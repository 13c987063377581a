# The trainer: Ray, torch, transformers. Targets: cpu (no CUDA libraries) and gpu (with them, and with vLLM). See scripts/images.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS base
# KubeRay's start command and probes are run by bash; the probes of a RayService call wget.
RUN apt-get update \
 && apt-get install -y --no-install-recommends bash procps wget \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
# Whatever the pod's root file system: Ray, torch and the hub write below /tmp and /var/lib/rltrain only.
# Some of reasoning-gym's generators go through sets of words: every process must order them alike.
ENV PYTHONHASHSEED=0
ENV PATH=/opt/rltrain/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp RAY_USAGE_STATS_ENABLED=0
RUN useradd --uid 1000 --no-create-home --home-dir /tmp rltrain \
 && install -d -o 1000 -g 1000 /var/lib/rltrain /etc/rltrain

FROM ${BASE} AS tools
WORKDIR /src
COPY constraints.txt .
RUN python3 -m venv /tools && /tools/bin/pip install --no-cache-dir --quiet --constraint constraints.txt uv

# Some dependencies come as C sources.
FROM tools AS compilers
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev && rm -rf /var/lib/apt/lists/*

# What is asked for, without the rest of pyproject.toml: the layers below change with these lines and with constraints.txt only.
FROM tools AS requirements
COPY pyproject.toml .
RUN python3 -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = project['optional-dependencies']; \
[open(f'/{name}.txt', 'w').write('\n'.join(project['dependencies'] + extra)) for name, extra in extras.items()]"

FROM compilers AS cpu-dependencies
COPY --from=requirements /trainer.txt /s3.txt ./
COPY images/without_cuda.py .
RUN python3 -m venv --without-pip /opt/rltrain \
 && /tools/bin/uv pip install --no-cache --quiet --python /opt/rltrain/bin/python --constraint constraints.txt \
    --requirements trainer.txt --requirements s3.txt \
 && python3 without_cuda.py /opt/rltrain/lib/python3*/site-packages \
 && /opt/rltrain/bin/python -c 'import torch' \
 && find /opt/rltrain -name tests -path '*/site-packages/*' -prune -exec rm -rf {} + \
 && { /opt/rltrain/bin/python -W ignore -m compileall -qq /opt/rltrain/lib || echo 'a few files are of a newer Python'; }

FROM compilers AS gpu-dependencies
COPY --from=requirements /trainer.txt /s3.txt /vllm.txt ./
RUN python3 -m venv --without-pip /opt/rltrain \
 && /tools/bin/uv pip install --no-cache --quiet --compile-bytecode --python /opt/rltrain/bin/python --constraint constraints.txt \
    --requirements trainer.txt --requirements s3.txt --requirements vllm.txt

FROM tools AS wheel
# As far as .dockerignore lets it.
COPY . .
RUN /tools/bin/uv build --no-cache --quiet --wheel --build-constraint constraints.txt --out-dir /dist

FROM base AS cpu
COPY --from=cpu-dependencies /opt/rltrain /opt/rltrain
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist --mount=type=bind,from=tools,source=/tools,target=/tools \
    /tools/bin/uv pip install --no-cache --quiet --no-deps --compile-bytecode --python /opt/rltrain/bin/python /dist/*.whl
USER 1000:1000
WORKDIR /tmp

FROM base AS gpu
# Kernels are compiled where they run.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev && rm -rf /var/lib/apt/lists/*
COPY --from=gpu-dependencies /opt/rltrain /opt/rltrain
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist --mount=type=bind,from=tools,source=/tools,target=/tools \
    /tools/bin/uv pip install --no-cache --quiet --no-deps --compile-bytecode --python /opt/rltrain/bin/python /dist/*.whl
USER 1000:1000
WORKDIR /tmp
