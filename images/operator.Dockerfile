# The operator: Python, Kopf and the Kubernetes client; neither torch nor Ray. See scripts/images.
ARG BASE=python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b
FROM ${BASE} AS tools
WORKDIR /src
# Bytecode that says of which source it is, not of which time: two builds are equal.
ENV PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
COPY images/requirements/tools.txt .
RUN python3 -m venv /tools && /tools/bin/pip install --no-cache-dir --quiet --require-hashes --requirement tools.txt

FROM tools AS dependencies
COPY images/requirements/operator.txt .
RUN python3 -m venv --without-pip /opt/rltrain \
 && /tools/bin/uv pip install --no-cache --quiet --python /opt/rltrain/bin/python --require-hashes --only-binary :all: \
    --requirements operator.txt \
 # 80 MB of generated methods, one per verb and kind: the operator speaks to the API server without them.
 && cd /opt/rltrain/lib/python3*/site-packages \
 && find kubernetes/client/api kubernetes/aio/client/api -name '[a-z]*.py' -delete \
 && /opt/rltrain/bin/python -m compileall -q --invalidation-mode checked-hash -x '/client/models/[a-z]' .

FROM tools AS wheel
# As far as .dockerignore lets it.
COPY . .
RUN /tools/bin/uv build --no-cache --quiet --wheel --no-build-isolation --python /tools/bin/python --out-dir /dist

FROM ${BASE}
# Python asks for the name of its user, who is in no list of users.
ENV PATH=/opt/rltrain/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=rltrain
COPY --from=dependencies /opt/rltrain /opt/rltrain
# By pip, as uv notes the time of the wheel.
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist --mount=type=bind,from=tools,source=/tools,target=/tools \
    /tools/bin/pip --python /opt/rltrain/bin/python install --no-cache-dir --quiet --no-compile --no-deps --no-index --find-links /dist rltrain \
 && PYTHONHASHSEED=0 /opt/rltrain/bin/python -m compileall -q --invalidation-mode checked-hash /opt/rltrain/lib/python3*/site-packages/rl_*
# By number: Kubernetes checks runAsNonRoot without looking into the image.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["rltrain-operator"]
