# The images of Poolkeeper. Targets: worker (users build theirs FROM it) and operator.
#
# Nothing is fetched while building: the wheels lie in dist/wheels, made on the host for the base image's Python
# (`make images` does that, or `python -m lab wheels`). Every instruction has exec form, so no shell is needed.
# A user's image is two lines (and `poolkeeper worker` finds the app below /app):
#     FROM localhost/poolkeeper-worker:dev
#     COPY my_agent /app/my_agent
# The base is any image with glibc, Python >= 3.11 and its venv module; pin it by digest for a release.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG SOURCE_DATE_EPOCH=0
COPY dist/wheels /wheels
RUN ["/usr/sbin/useradd", "--uid", "65532", "--no-create-home", "--home-dir", "/tmp", "--shell", "/usr/sbin/nologin", "poolkeeper"]
RUN ["python3", "-m", "venv", "/opt/poolkeeper"]
RUN ["/opt/poolkeeper/bin/python", "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-index", "--find-links=/wheels", "--no-compile", "poolkeeper"]

# Bytecode is made here, since the root file system is read-only later; it is trusted without looking at file times,
# which a reproducible build sets to one value.
FROM build AS build-worker
RUN ["/opt/poolkeeper/bin/python", "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", "/opt/poolkeeper/lib"]

FROM build AS build-operator
RUN ["/opt/poolkeeper/bin/python", "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-index", "--find-links=/wheels", "--no-compile", "poolkeeper[operator]"]
RUN ["/opt/poolkeeper/bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip"]
RUN ["/opt/poolkeeper/bin/python", "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", "/opt/poolkeeper/lib"]

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
COPY --from=build-operator /opt/poolkeeper /opt/poolkeeper
CMD ["operator"]

# last, so that a build without a target makes the image that users build on
FROM runtime AS worker
ARG VERSION=dev
LABEL org.opencontainers.image.title="poolkeeper-worker" \
      org.opencontainers.image.description="Base image of Poolkeeper workers: copy your app to /app" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build-worker /opt/poolkeeper /opt/poolkeeper
ENV PYTHONPATH=/app
WORKDIR /app
CMD ["worker"]
