# Two stages make the image: `build` makes an environment, `controller` gets that and nothing else. `--target kubesim` is
# the same with a simulated cluster in it (docker-compose.yml); what is built without a target is the controller.
# Steps that no shell joins are steps of their own (DL3059); those of the first stage stay there.
# hadolint global ignore=DL3059
ARG PYTHON=3.13.16-slim-trixie@sha256:3dd7cc108ec1493442514f5c2a871af6af0ec31d768ff6e378a93340c3b3db5f

FROM python:${PYTHON} AS build
WORKDIR /source
# Dependencies first: while their lists stay the same, a change of the source builds none of this anew. Of what others
# publish only files whose hashes are in a list; nothing is compiled, so nothing else is downloaded to do that.
COPY deploy/container/build-requirements.txt deploy/container/requirements.txt deploy/container/prune.py deploy/container/
RUN ["python", "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check", "--root-user-action", "ignore", \
     "--require-hashes", "--no-deps", "--only-binary", ":all:", "--requirement", "deploy/container/build-requirements.txt"]
# Without pip in it: what runs installs nothing.
RUN ["python", "-m", "venv", "--without-pip", "/opt/gracectl"]
RUN ["python", "-m", "pip", "--python", "/opt/gracectl/bin/python", "install", "--no-cache-dir", "--no-compile", \
     "--disable-pip-version-check", "--require-hashes", "--no-deps", "--only-binary", ":all:", \
     "--requirement", "deploy/container/requirements.txt"]
# A quarter of all that: what is never read.
RUN ["/opt/gracectl/bin/python", "deploy/container/prune.py"]
# The root of a container is often read-only, and copying may change the times of files: bytecode that is never checked
# against its source is used all the same.
RUN ["/opt/gracectl/bin/python", "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", \
     "/opt/gracectl/lib"]
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY gracectl gracectl
RUN ["python", "-m", "pip", "wheel", "--no-cache-dir", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", \
     "--wheel-dir", "/wheels", "."]
# Fails if the list lacks a dependency.
RUN ["python", "-m", "pip", "--python", "/opt/gracectl/bin/python", "install", "--no-cache-dir", "--no-compile", \
     "--disable-pip-version-check", "--no-index", "--find-links", "/wheels", "gracectl[agent,aws]"]
RUN ["/opt/gracectl/bin/python", "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", \
     "-x", "site-packages/(?!gracectl/)", "/opt/gracectl/lib"]

FROM build AS build-kubesim
COPY kubesim kubesim
RUN ["python", "-m", "pip", "wheel", "--no-cache-dir", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", \
     "--wheel-dir", "/wheels", "./kubesim"]
RUN ["python", "-m", "pip", "--python", "/opt/gracectl/bin/python", "install", "--no-cache-dir", "--no-compile", \
     "--disable-pip-version-check", "--no-index", "--find-links", "/wheels", "gracectl[demo]"]
RUN ["/opt/gracectl/bin/python", "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", \
     "-x", "site-packages/(?!kubesim/)", "/opt/gracectl/lib"]

FROM python:${PYTHON} AS controller
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gracectl" \
      org.opencontainers.image.description="Terminates Kubernetes nodes gracefully, without breaking a PodDisruptionBudget" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN ["python", "-m", "pip", "uninstall", "--yes", "--quiet", "--root-user-action", "ignore", "pip"]
COPY --from=build /opt/gracectl /opt/gracectl
COPY LICENSE NOTICE /usr/share/doc/gracectl/
COPY deploy/container/config.yaml /etc/gracectl/config.yaml
# There is no home to write into; a user without one would be given the root folder.
ENV PATH=/opt/gracectl/bin:${PATH} \
    HOME=/nonexistent \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that runAsNonRoot can be checked; no process needs its name.
USER 65532:65532
WORKDIR /
# metrics, probes
EXPOSE 9090 8081
STOPSIGNAL SIGTERM
# Past any proxy that the environment names.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-I", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8081/healthz', timeout=4).read()"]
ENTRYPOINT ["gracectl"]
CMD ["controller", "--config", "/etc/gracectl/config.yaml"]

FROM controller AS kubesim
COPY --from=build-kubesim /opt/gracectl /opt/gracectl
HEALTHCHECK NONE
CMD ["simulate", "--bind", "0.0.0.0", "--port", "16443"]

FROM controller
