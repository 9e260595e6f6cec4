# Front door: each target says what is missing on this machine and calls CMake and CTest.
# `make serve ARGS="--port 9000"`, `make fuzz FUZZ_SECONDS=60`, `make -k test` runs all it can.
.PHONY: all serve test test-dev test-release test-long asan tsan tidy fuzz bench clean
.NOTPARALLEL:

all:
	@tools/deps build
	cmake --workflow --preset program
serve: all
	build/release/fathom serve $(ARGS)
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
