# A newer image: take the digest that `docker buildx imagetools inspect python:TAG` prints.
ARG PYTHON_IMAGE=python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
FROM ${PYTHON_IMAGE} AS build
# 1: the modules that decide and audit are compiled.
ARG FAIRLOG_COMPILED=1
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
ENV PIP_NO_CACHE_DIR=1
# Only what the lock files name, with these hashes; the wheel is built with what /opt/build has installed.
RUN python -m venv /opt/fairlog \
    && /opt/fairlog/bin/pip install --require-hashes --only-binary :all: -r requirements.lock
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --only-binary :all: -r requirements-build.lock
COPY . .
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/fairlog/bin/pip install --no-deps /wheels/*

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/fairlog /opt/fairlog
# The worker keeps the whole output of its tasks under the data folder.
RUN useradd --create-home --uid 10001 fairlog \
    && install --directory --owner=fairlog --mode=0700 /data
ENV PATH=/opt/fairlog/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    XDG_DATA_HOME=/data
USER fairlog
VOLUME /data
ENTRYPOINT ["fairlog"]
CMD ["--help"]
