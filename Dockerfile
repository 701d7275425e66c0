# The images of Poolkeeper. Targets: worker (users build theirs FROM it) and operator.
#
# Nothing is fetched while building: dist/ holds the wheels, made on the host for the base image's Python. `make images`
# makes them and builds; for a build by hand: `make wheels`, then `docker build --target worker .` or the like.
# Every instruction has exec form, so the base needs no shell: any image with glibc, Python >= 3.11 and its venv module.
# A user's image is two lines (and `poolkeeper worker my_agent:app` finds the app below /app):
#     FROM localhost/poolkeeper-worker:dev
#     COPY my_agent /app/my_agent
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

# With SOURCE_DATE_EPOCH bytecode depends on the source's hash instead of its time, which a reproducible build resets.
FROM ${BASE_IMAGE} AS build
ENV PATH=/opt/poolkeeper/bin:/usr/local/bin:/usr/bin:/bin \
    SOURCE_DATE_EPOCH=0 \
    PIP_NO_INDEX=1 PIP_NO_CACHE_DIR=1 PIP_QUIET=1 PIP_ROOT_USER_ACTION=ignore
RUN ["/usr/sbin/groupadd", "--gid", "65532", "poolkeeper"]
RUN ["/usr/sbin/useradd", "--uid", "65532", "--gid", "65532", "--no-create-home", "--home-dir", "/tmp", "--shell", "/usr/sbin/nologin", "poolkeeper"]
RUN ["python3", "-m", "venv", "/opt/poolkeeper"]
COPY dist/wheels /wheels

FROM build AS dependencies-worker
RUN ["pip", "install", "--find-links=/wheels", "--requirement=/wheels/worker.txt"]

FROM build AS dependencies-operator
RUN ["pip", "install", "--find-links=/wheels", "--requirement=/wheels/operator.txt"]
RUN ["pip", "uninstall", "--yes", "setuptools", "pip"]

# beside the dependencies, so that a change of our own code changes one small layer
FROM build AS ours
COPY dist/poolkeeper /poolkeeper
RUN ["pip", "install", "--find-links=/poolkeeper", "--no-deps", "--prefix=/ours", "poolkeeper"]

FROM ${BASE_IMAGE} AS runtime
COPY --from=build /etc/passwd /etc/group /etc/
ENV PATH=/opt/poolkeeper/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["poolkeeper"]

FROM runtime AS operator
ARG VERSION=dev
LABEL org.opencontainers.image.title="poolkeeper-operator" \
      org.opencontainers.image.description="Keeps the worker pools that TaskQueues and WorkerPools ask for" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=dependencies-operator /opt/poolkeeper /opt/poolkeeper
COPY --from=ours /ours /opt/poolkeeper
CMD ["operator"]

# last, so that a build without a target makes the image that users build on
FROM runtime AS worker
ARG VERSION=dev
LABEL org.opencontainers.image.title="poolkeeper-worker" \
      org.opencontainers.image.description="Base image of Poolkeeper workers: copy your app to /app" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=dependencies-worker /opt/poolkeeper /opt/poolkeeper
COPY --from=ours /ours /opt/poolkeeper
ENV PYTHONPATH=/app
WORKDIR /app
CMD ["worker"]
