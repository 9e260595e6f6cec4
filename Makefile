# Front door: each target says what is missing on this machine and calls CMake and CTest.
# `make serve ARGS="--port 9000"`, `make install PREFIX=/usr`, `make fuzz FUZZ_SECONDS=60`, `make -k test` runs all it can.
.PHONY: all serve install deb sbom test test-dev test-release test-long asan tsan tidy fuzz bench clean
.NOTPARALLEL:

# Which program is built: `make PRESET=release` that of the processor, `make PRESET=cuda` the other;
# cuda where a GPU and nvcc are found, which tools/preset says on the error output.
program = $(eval program := $(or $(PRESET),$(shell tools/preset)))$(program)
PREFIX ?= /usr/local

all:
	@tools/deps build
	cmake --workflow --preset $(if $(filter cuda,$(program)),program-cuda,program)
serve: all
	build/$(program)/fathom serve $(ARGS)
install: all
	DESTDIR=$(DESTDIR) cmake --install build/$(program) --prefix $(PREFIX) --component program
deb:
	@tools/deps deb
	cmake --workflow --preset program
	tools/deb build/release
	[ ! -x build/cuda/fathom ] || tools/deb build/cuda
sbom: all
	tools/sbom build/$(program) > build/$(program)/fathom.spdx.json
test: test-dev test-release
test-dev test-release: test-%:
	@tools/deps test
	cmake --workflow --preset $*
test-long:
	@tools/deps test
	cmake --workflow --preset long
asan tsan:
	@tools/deps test
	cmake --workflow --preset $@
tidy:
	@tools/deps tidy
	tools/tidy
fuzz:
	@tools/deps fuzz
	cmake --workflow --preset fuzz
	tools/fuzz
bench:
	@tools/deps test
	cmake --workflow --preset benches
	tools/bench $(ARGS)
clean:
	rm -rf build
