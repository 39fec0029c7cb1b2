# One image for the master, the workers and the embedded simulator. Built by docker and by podman:
#   docker build -t agentload:0.1.0 .
# BASE_IMAGE is any image with Python 3.11 or newer as `python3`, the venv module and tar.
ARG BASE_IMAGE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${BASE_IMAGE} AS build
# Where packages come from, if not from the index: --build-arg PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY analysis analysis
COPY locustfiles locustfiles
# Compiled is what a pod imports, by importing it: the root file system of the pods is read-only, and
# the libraries of the report would add 40 MB. What only compilers and type checkers read stays out.
RUN /opt/venv/bin/pip install --no-compile --constraint constraints.txt . \
    && /opt/venv/bin/locust --locustfile locustfiles/coding_agents.py --help >/dev/null \
    && /opt/venv/bin/python -c 'import agentload.sim.server.serve, agentload.recording.scrape, agentload.kubernetes.pod, agentload.kubernetes.wait' \
    && find /opt/venv/lib -type d -path '*/site-packages/*/tests' -prune -exec rm -rf {} + \
    && find /opt/venv/lib -type f -name '*.py[ix]' -o -name '*.pxd' -o -name '*.[ach]' | xargs rm -f \
    && /opt/venv/bin/pip uninstall --yes --quiet pip setuptools

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="agentload" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/venv /opt/venv
COPY locustfiles /opt/agentload/locustfiles
COPY scenarios /opt/agentload/scenarios
COPY experiments /opt/agentload/experiments
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
# Results are copied by tar; a base without it is found out here, not after the run.
RUN tar --version >/dev/null && agentload --version
USER 10001:10001
WORKDIR /opt/agentload
CMD ["agentload", "--help"]
