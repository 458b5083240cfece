# syntax=docker/dockerfile:1
# Two stages: the first builds a virtual environment, the second carries it and nothing that builds.
#   docker build --tag peerd:0.1.0 .
#   docker build --build-arg EXTRAS= --tag peerd:0.1.0-lean .
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
ARG EXTRAS="filter"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/peerd
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY peerd ./peerd
COPY protocols ./protocols
# Nothing is installed whose hash is not in the lock, which has the extras filter and mqtt: what is not wanted goes again.
RUN /opt/peerd/bin/pip install --require-hashes --requirement requirements.lock \
    && /opt/peerd/bin/pip install --no-deps --no-build-isolation . \
    && case ",${EXTRAS}," in *,filter,*) ;; *) /opt/peerd/bin/pip uninstall --yes numpy ;; esac \
    && case ",${EXTRAS}," in *,mqtt,*) ;; *) /opt/peerd/bin/pip uninstall --yes ohmqtt ;; esac \
    && /opt/peerd/bin/pip uninstall --yes setuptools \
    && /opt/peerd/bin/python -m compileall -q /opt/peerd/lib

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="peerd" \
      org.opencontainers.image.description="Peer-to-peer data dissemination and aggregation: one daemon per machine" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/peerd /opt/peerd
# A named volume that is empty takes over owner and mode of the folder below it. The id is a number, and has no
# entry in /etc/passwd, so that an orchestrator can prove it is not root.
RUN install -d -o 65532 -g 65532 -m 0700 /var/lib/peerd /run/peerd \
    && install -d -o 65532 -g 65532 -m 0750 /etc/peerd
ENV PATH=/opt/peerd/bin:$PATH \
    HOME=/var/lib/peerd \
    PEERD_ADMIN__SOCKET=/run/peerd/admin.sock \
    PEERD_SOCKET=/run/peerd/admin.sock \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/peerd
USER 65532:65532
EXPOSE 7420
STOPSIGNAL SIGTERM
# The exec form: no shell between the container runtime and the check.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["peerd", "healthcheck"]
ENTRYPOINT ["peerd"]
CMD ["run", "--config", "/etc/peerd/peerd.toml"]
