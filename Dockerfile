# The images of ipwitness. The target agent is the image of the agent, which runs as root
# with four capabilities. The target ipwitness, the default, has everything else: the
# aggregator, which needs no privileges.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v1.2.3 --target agent .
#
# make image builds the same images without a container engine: make takes the part of the
# first stage, and tools/image that of the others. A test builds and compares both.
ARG GO_VERSION=1.26.8

FROM --platform=$BUILDPLATFORM docker.io/library/golang:$GO_VERSION AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=devel
ARG REVISION=unknown
RUN mkdir /out && CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -tags grpcnotrace \
	-ldflags "-s -w -X github.com/ipwitness/ipwitness/cmd/cli.version=$VERSION -X github.com/ipwitness/ipwitness/cmd/cli.commit=$REVISION" \
	-o /out/ ./cmd/ipwitness ./cmd/ipwitness-agent
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH deploy/licenses.sh >/out/THIRD-PARTY-LICENSES

FROM scratch AS agent
COPY --from=build /out/ipwitness-agent /ipwitness-agent
COPY LICENSE bpf/LICENSE.GPL-2.0 bpf/LICENSE.BSD-2-Clause /licenses/
COPY --from=build /out/THIRD-PARTY-LICENSES /licenses/
ARG VERSION=devel
ARG REVISION=unknown
LABEL org.opencontainers.image.title="ipwitness-agent" \
      org.opencontainers.image.description="The agent of ipwitness: observes the owners of addresses on a node" \
      org.opencontainers.image.url="https://github.com/ipwitness/ipwitness" \
      org.opencontainers.image.source="https://github.com/ipwitness/ipwitness" \
      org.opencontainers.image.documentation="https://github.com/ipwitness/ipwitness/blob/main/docs/reference.md" \
      org.opencontainers.image.vendor="The ipwitness authors" \
      org.opencontainers.image.licenses="Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
USER 0:0
WORKDIR /
EXPOSE 9642
ENTRYPOINT ["/ipwitness-agent"]

FROM scratch AS ipwitness
COPY --from=build /out/ipwitness /ipwitness
# The licences of the program, of the BPF object (a choice of two) and of the dependencies.
COPY LICENSE bpf/LICENSE.GPL-2.0 bpf/LICENSE.BSD-2-Clause /licenses/
COPY --from=build /out/THIRD-PARTY-LICENSES /licenses/
ARG VERSION=devel
ARG REVISION=unknown
LABEL org.opencontainers.image.title="ipwitness" \
      org.opencontainers.image.description="Who really holds this IP address, right now, and does anybody else?" \
      org.opencontainers.image.url="https://github.com/ipwitness/ipwitness" \
      org.opencontainers.image.source="https://github.com/ipwitness/ipwitness" \
      org.opencontainers.image.documentation="https://github.com/ipwitness/ipwitness/blob/main/docs/reference.md" \
      org.opencontainers.image.vendor="The ipwitness authors" \
      org.opencontainers.image.licenses="Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
USER 65532:65532
WORKDIR /
# The gRPC, REST and metrics ports of the aggregator.
EXPOSE 9640 9641 9643
ENTRYPOINT ["/ipwitness"]
