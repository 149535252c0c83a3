# One image for every `ledger …` command. The lock's hashes are checked as constraints, so the image
# holds the locked bytes of what it needs, and none of the development tools.

FROM python:3.11-slim-bookworm AS build
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /source
RUN python -m venv /opt/ledger
ENV UV_PYTHON=/opt/ledger/bin/python UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy

# Libraries first: they change less often than we do.
COPY pyproject.toml requirements.lock ./
RUN uv pip install --no-cache --constraint requirements.lock --requirement pyproject.toml --extra s3

COPY . .
RUN uv pip install --no-cache --no-deps --build-constraint requirements.lock .


FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin ledger
COPY --from=build /opt/ledger /opt/ledger
ENV PATH=/opt/ledger/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
# Stopping drains, then leaves; an orchestrator should grant it at least 30 s.
STOPSIGNAL SIGTERM
ENTRYPOINT ["ledger"]
CMD ["--help"]
