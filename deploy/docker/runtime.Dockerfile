# What runs beside a model, with llama.cpp for CPUs. For GPUs give a base that has the engine: PYTHON=<an image with vLLM, by digest>.
#   docker build -f deploy/docker/runtime.Dockerfile --build-arg PYTHON=<a Python 3.11+ slim image by digest> .
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS packages
COPY requirements/bootstrap.txt requirements/runtime.txt /build/
RUN python -m venv --system-site-packages /opt/berth \
 && /opt/berth/bin/pip install --no-cache-dir --no-deps --require-hashes -r /build/bootstrap.txt \
 && /opt/berth/bin/uv pip install --no-cache --python /opt/berth/bin/python --no-deps --require-hashes -r /build/runtime.txt \
 && /opt/berth/bin/uv pip uninstall --python /opt/berth/bin/python uv

FROM ${PYTHON}
RUN groupadd --gid 65532 berth && useradd --uid 65532 --gid 65532 --no-create-home --shell /usr/sbin/nologin berth
COPY --from=packages /opt/berth /opt/berth
COPY runtime /app/runtime
ENV PATH=/opt/berth/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/app/runtime PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /app
USER 65532:65532
