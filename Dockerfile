FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /opt/fairlog
COPY . .
RUN /opt/fairlog/bin/pip install --no-cache-dir '.[archive]'

FROM python:3.13-slim
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
