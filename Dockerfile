# fedray in an image, for CPUs: docker build -t fedray .
# With CUDA:                    docker build --build-arg TORCH=cu130 -t fedray:cuda .
# Use:                          docker run --rm -v "$PWD":/work fedray sweep quickstart
# sweeps/clusters/kuberay.yaml and mlflow.yaml use it, too; tag and push it to a registry that the cluster reaches.
FROM python:3.11-slim AS wheel
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel /src

FROM python:3.11-slim
ARG TORCH=cpu
# KubeRay's probes call wget.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 fedray \
    && install -d -o fedray /work
COPY constraints.txt requirements.txt /opt/
# TORCH is uv's name of a build of PyTorch: cpu, or a version of CUDA. ray[default] has the dashboard, which takes Ray Jobs, and
# psycopg2 is for a PostgreSQL store. All is compiled here: the user fedray could not keep what each process would compile anew.
RUN pip install --no-cache-dir -c /opt/constraints.txt uv \
    && uv pip install --system --no-cache --compile-bytecode --torch-backend "$TORCH" \
        -c /opt/constraints.txt -r /opt/requirements.txt 'ray[default]' psycopg2-binary
COPY --from=wheel /wheel /wheel
RUN uv pip install --system --no-cache --compile-bytecode --no-deps /wheel/*.whl
USER fedray
WORKDIR /work
# An image that cannot train is not built.
RUN fedray run example --backend inline --no-track --set training.rounds=1
ENTRYPOINT ["fedray"]
CMD ["--help"]
