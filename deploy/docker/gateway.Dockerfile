# The gateway. It has no shell and no package manager: whoever gets into it finds nothing to run.
#   docker build -f deploy/docker/gateway.Dockerfile --build-arg PYTHON=<a Python 3.11+ slim image by digest> .
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS packages
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY requirements/bootstrap.txt requirements/gateway.txt /build/
RUN python -m venv --copies /opt/berth \
 && /opt/berth/bin/pip install --no-cache-dir --no-deps --require-hashes -r /build/bootstrap.txt \
 && /opt/berth/bin/uv pip install --no-cache --python /opt/berth/bin/python --no-deps --require-hashes -r /build/gateway.txt \
 && /opt/berth/bin/uv pip uninstall --python /opt/berth/bin/python uv pip

# Everything that Python needs of the system, and nothing that runs anything else.
FROM ${PYTHON} AS bare
COPY --from=packages /opt/berth /opt/berth
RUN groupadd --gid 65532 berth && useradd --uid 65532 --gid 65532 --no-create-home --shell /usr/sbin/nologin berth
RUN mkdir -p /image/etc /image/usr /image/opt /image/tmp /image/app \
 && cp -a /lib /image/ \
 && if [ -e /lib64 ]; then cp -a /lib64 /image/; fi \
 && cp -a /usr/lib /usr/local /image/usr/ \
 && cp -a /opt/berth /image/opt/ \
 && cp -a /etc/passwd /etc/group /etc/ssl /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /image/etc/ \
 && rm -rf /image/usr/lib/apt /image/usr/local/bin/pip* /image/usr/local/lib/python3*/site-packages/pip

FROM scratch
COPY --from=bare /image /
COPY platform/berth_gateway /app/platform/berth_gateway
ENV PATH=/opt/berth/bin PYTHONPATH=/app/platform PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /app
USER 65532:65532
ENTRYPOINT ["/opt/berth/bin/python", "-m", "berth_gateway"]
