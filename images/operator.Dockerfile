# The operator: Python, Kopf and the Kubernetes client; neither torch nor Ray. See scripts/images.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS tools
WORKDIR /src
COPY constraints.txt .
RUN python3 -m venv /tools && /tools/bin/pip install --no-cache-dir --quiet --constraint constraints.txt uv

# What is asked for, without the rest of pyproject.toml: the layers below change with these lines and with constraints.txt only.
FROM tools AS requirements
COPY pyproject.toml .
RUN python3 -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = project['optional-dependencies']; \
[open(f'/{name}.txt', 'w').write('\n'.join(project['dependencies'] + extra)) for name, extra in extras.items()]"

FROM tools AS dependencies
COPY --from=requirements /operator.txt .
RUN python3 -m venv --without-pip /opt/rltrain \
 && /tools/bin/uv pip install --no-cache --quiet --python /opt/rltrain/bin/python --constraint constraints.txt \
    --requirements operator.txt \
 # 80 MB of generated methods, one per verb and kind: the operator speaks to the API server without them.
 && cd /opt/rltrain/lib/python3*/site-packages \
 && find kubernetes/client/api kubernetes/aio/client/api -name '[a-z]*.py' -delete \
 && /opt/rltrain/bin/python -m compileall -q -x '/client/models/[a-z]' .

FROM tools AS wheel
# As far as .dockerignore lets it.
COPY . .
RUN /tools/bin/uv build --no-cache --quiet --wheel --build-constraint constraints.txt --out-dir /dist

FROM ${BASE}
# Python asks for the name of its user, who is in no list of users.
ENV PATH=/opt/rltrain/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=rltrain
COPY --from=dependencies /opt/rltrain /opt/rltrain
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist --mount=type=bind,from=tools,source=/tools,target=/tools \
    /tools/bin/uv pip install --no-cache --quiet --no-deps --compile-bytecode --python /opt/rltrain/bin/python /dist/*.whl
# By number: Kubernetes checks runAsNonRoot without looking into the image.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["rltrain-operator"]
