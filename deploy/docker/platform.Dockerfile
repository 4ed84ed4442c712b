# The control plane: web, worker, beat, migrations, told apart by their arguments. Build from the root of a checkout:
#   docker build -f deploy/docker/platform.Dockerfile --build-arg PYTHON=<a Python 3.11+ slim image by digest> .
ARG PYTHON=python:3.13-slim
ARG NODE=node:24-slim

FROM ${NODE} AS dashboard
WORKDIR /build/frontend
COPY frontend/package.json frontend/package-lock.json ./
RUN npm ci --ignore-scripts --no-audit --no-fund
COPY frontend ./
RUN npm run build

FROM ${PYTHON} AS packages
COPY requirements/bootstrap.txt requirements/platform.txt requirements/runtime.txt /build/
RUN python -m venv /opt/berth \
 && /opt/berth/bin/pip install --no-cache-dir --no-deps --require-hashes -r /build/bootstrap.txt \
 && /opt/berth/bin/uv pip install --no-cache --python /opt/berth/bin/python --no-deps --require-hashes -r /build/platform.txt \
 && /opt/berth/bin/uv pip install --no-cache --python /opt/berth/bin/python --no-deps --require-hashes -r /build/runtime.txt \
 && /opt/berth/bin/uv pip uninstall --python /opt/berth/bin/python uv

FROM ${PYTHON}
RUN groupadd --gid 65532 berth && useradd --uid 65532 --gid 65532 --no-create-home --shell /usr/sbin/nologin berth
COPY --from=packages /opt/berth /opt/berth
COPY manage.py /app/
COPY platform /app/platform
COPY runtime /app/runtime
COPY --from=dashboard /build/frontend/dist /app/frontend/dist
ENV PATH=/opt/berth/bin:/usr/bin:/bin PYTHONPATH=/app/platform:/app/runtime PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /app
USER 65532:65532
