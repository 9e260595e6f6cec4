/* fake_nvml.c - NVIDIA's management library with one GPU, for `fathom doctor`
 *
 * Compiled by its test as libnvidia-ml.so.1. FAKE_GPU has the GPU's capability, memory errors, PCIe
 * lanes and whether it is divided: "9.0 0 16 0". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct memory {
    unsigned long long total, free, used;
};

static struct {
    int major, minor;
    unsigned errors, lanes, divided;
} gpu;

int nvmlInit_v2(void)
{
    const char *text = getenv("FAKE_GPU");
    return !text || sscanf(text, "%d.%d %u %u %u", &gpu.major, &gpu.minor, &gpu.errors, &gpu.lanes,
                           &gpu.divided) != 5;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlSystemGetDriverVersion(char *out, unsigned bytes)
{
    return snprintf(out, bytes, "580.1") < 0;
}

int nvmlDeviceGetCount_v2(unsigned *out)
{
    *out = 1;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    *out = &gpu;
    return index != 0;
}

int nvmlDeviceGetName(void *device, char *out, unsigned bytes)
{
    (void)device;
    return snprintf(out, bytes, "NVIDIA Fake") < 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *out)
{
    (void)device;
    *out = (struct memory){80000000000, 20000000000, 60000000000};
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    (void)device;
    *major = gpu.major;
    *minor = gpu.minor;
    return 0;
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *out)
{
    (void)device;
    *out = kind == 1 && counter == 0 ? gpu.errors : 0;
    return 0;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *out)
{
    (void)device;
    *out = gpu.lanes;
    return 0;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *out)
{
    (void)device;
    *out = 16;
    return 0;
}

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending)
{
    (void)device;
    *now = *pending = gpu.divided;
    return 0;
}
