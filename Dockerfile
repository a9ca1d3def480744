# A newer image: take the digest that `docker buildx imagetools inspect python:TAG` prints.
ARG PYTHON_IMAGE=python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY requirements.lock .
# Only what the lock file names, with these hashes; the last step builds with what it has installed.
RUN python -m venv /opt/fairlog \
    && /opt/fairlog/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock
COPY . .
RUN /opt/fairlog/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

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
