# The image of ipwitness, for both the agent and the aggregator. The agent runs as root
# with four capabilities; the aggregator needs no privileges and is the default.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v1.2.3 .
#
# make image builds the same image without a container engine: make takes the part of the
# first stage, and tools/image that of the last stage. A test builds and compares both.
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
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
	-ldflags "-s -w -X main.version=$VERSION -X main.commit=$REVISION" -o /out/ipwitness ./cmd/ipwitness
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH deploy/licenses.sh >/out/THIRD-PARTY-LICENSES

FROM scratch
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
# The aggregator's gRPC, REST and metrics ports (9640, 9641, 9643) and the agent's HTTP port (9642).
EXPOSE 9640 9641 9642 9643
ENTRYPOINT ["/ipwitness"]
