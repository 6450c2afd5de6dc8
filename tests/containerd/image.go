package containerd

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
)

// Image is the only available image. It is the image of sandboxes, and can also run as a container
// of a pod: it waits until it is stopped.
const Image = "localhost/pause:1"

// pauseCode are the programs, by GOARCH. They block SIGTERM and SIGINT, wait for one of them, and
// exit. Blocked signals are also delivered to the first process of a PID namespace.
var pauseCode = map[string][]byte{
	"amd64": {
		0x68, 0x02, 0x40, 0x00, 0x00, // push $0x4002        SIGTERM, SIGINT
		0x48, 0x89, 0xe6, // mov %rsp,%rsi
		0x31, 0xd2, // xor %edx,%edx
		0x31, 0xff, // xor %edi,%edi              SIG_BLOCK
		0x6a, 0x08, 0x41, 0x5a, // push $8; pop %r10
		0x6a, 0x0e, 0x58, // push $14; pop %rax   rt_sigprocmask
		0x0f, 0x05, // syscall
		0x48, 0x89, 0xe7, // wait: mov %rsp,%rdi
		0x31, 0xf6, // xor %esi,%esi
		0x31, 0xd2, // xor %edx,%edx
		0x6a, 0x08, 0x41, 0x5a, // push $8; pop %r10
		0xb8, 0x80, 0x00, 0x00, 0x00, // mov $128,%eax        rt_sigtimedwait
		0x0f, 0x05, // syscall
		0x85, 0xc0, // test %eax,%eax
		0x78, 0xea, // js wait
		0x31, 0xff, // xor %edi,%edi
		0xb8, 0xe7, 0x00, 0x00, 0x00, // mov $231,%eax        exit_group
		0x0f, 0x05, // syscall
	},
}

// pause returns a static program (elf(5)) that consists of one segment.
func pause() ([]byte, error) {
	code, ok := pauseCode[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("no pause program for %s: add its code to tests/containerd/image.go", runtime.GOARCH)
	}
	const base, headers = 0x400000, 64 + 56
	var b bytes.Buffer
	b.WriteString("\x7fELF\x02\x01\x01" + string(make([]byte, 9)))
	put := func(fields ...any) {
		for _, f := range fields {
			_ = binary.Write(&b, binary.LittleEndian, f) // cannot fail: all values have a fixed size
		}
	}
	put(uint16(2), uint16(62), uint32(1))                                           // ET_EXEC, EM_X86_64, EV_CURRENT
	put(uint64(base+headers), uint64(64), uint64(0), uint32(0))                     // entry, program headers, no sections
	put(uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0))         // sizes and counts
	put(uint32(1), uint32(5), uint64(0), uint64(base), uint64(base))                // PT_LOAD, readable and executable
	put(uint64(headers+len(code)), uint64(headers+len(code)), uint64(0x1000), code) // sizes, alignment
	return b.Bytes(), nil
}

// archive returns an image that contains only one static program, in the format of `docker save`.
func archive(image, name, user string, program []byte) ([]byte, error) {
	layer, err := tarball(file{name, program, 0o755})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{"/" + name}, "User": user},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{image}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return nil, err
	}
	return tarball(file{"manifest.json", manifest, 0o644}, file{"config.json", config, 0o644}, file{"layer.tar", layer, 0o644})
}

type file struct {
	name string
	data []byte
	mode int64
}

func tarball(files ...file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Size: int64(len(f.data)), Mode: f.mode}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
