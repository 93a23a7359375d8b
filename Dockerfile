# An image to train in:
#
#   docker build --tag rankless:1 .                              # NVIDIA GPUs, or CPUs: PyTorch as pip has it
#   docker build --tag rankless:1 --build-arg DEVICE=cpu \
#       --build-arg TORCH_INDEX=URL .                            # CPUs alone, smaller: URL is the index of PyTorch's
#                                                                # CPU builds, from its installation page
#   docker run --gpus all --shm-size 8g --volume "$PWD:/workspace" rankless:1 train digits
#
# The packages are those of constraints.txt, which everything was tested with. CUDA comes with PyTorch's packages, so
# the host needs a driver and no more.

ARG PYTHON=3.12
ARG DEVICE=cuda

FROM python:${PYTHON}-slim-bookworm AS build
ARG TORCH_INDEX=""
WORKDIR /source
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/rankless
# PyTorch in a layer of its own: it is gigabytes, and changes far less often than the source. Of one version, pip
# prefers the build with a local label, such as +cpu.
COPY constraints.txt ./
RUN /opt/rankless/bin/pip install --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
    torch torchvision
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src ./src
RUN /opt/rankless/bin/pip install --constraint constraints.txt ".[onnx,tensorboard,tune,video]"

FROM python:${PYTHON}-slim-bookworm AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM python:${PYTHON}-slim-bookworm AS cpu
ENV RANKLESS_CPU=1

# hadolint ignore=DL3006
FROM ${DEVICE}
COPY --from=build /opt/rankless /opt/rankless
# What a training writes belongs to this user; --user "$(id -u):$(id -g)" makes it yours.
RUN useradd --create-home --uid 1000 rankless && mkdir /workspace && chown rankless /workspace
ENV PATH="/opt/rankless/bin:$PATH" PYTHONUNBUFFERED=1
USER 1000
WORKDIR /workspace
ENTRYPOINT ["rankless"]
CMD ["--help"]
