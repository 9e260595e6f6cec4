/* doctor_gpu.c - GPUs, by the driver's management library, which is opened when it is there
 *
 * The library's functions are looked up by name; a struct of NVML's that is needed is declared here
 * as its documentation has it. No header and no library of CUDA is needed to build this.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "cli/doctor.h"

enum {
    NVML_TEXT_BYTES = 96,
    NVML_LINKS_MAX = 18,
    NVML_CLOCK_SM = 1,
    NVML_MEMORY_ERROR_UNCORRECTED = 1,
    NVML_VOLATILE_ECC = 0,
};

typedef void *nvml_device;

struct nvml_memory {
    unsigned long long total, free, used;
};

/* What is used of the library; a NULL member: this version does not have it. */
struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*driver_version)(char *out, unsigned bytes);
    int (*device_count)(unsigned *out);
    int (*device_by_index)(unsigned index, nvml_device *out);
    int (*device_name)(nvml_device device, char *out, unsigned bytes);
    int (*memory_info)(nvml_device device, struct nvml_memory *out);
    int (*capability)(nvml_device device, int *major, int *minor);
    int (*link_state)(nvml_device device, unsigned link, unsigned *active);
    int (*pcie_generation)(nvml_device device, unsigned *out);
    int (*pcie_width)(nvml_device device, unsigned *out);
    int (*pcie_width_max)(nvml_device device, unsigned *out);
    int (*ecc_errors)(nvml_device device, int kind, int counter, unsigned long long *out);
    int (*persistence)(nvml_device device, int *out);
    int (*max_clock)(nvml_device device, int kind, unsigned *out);
    int (*mig_mode)(nvml_device device, unsigned *now, unsigned *pending);
};

/* ISO C has no conversion from an object's pointer to a function's; the bytes are the same. */
static void look_up(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
}

static bool open_nvml(struct nvml *n)
{
    memset(n, 0, sizeof *n);
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!n->library) return false;
    look_up(n->library, "nvmlInit_v2", &n->init);
    look_up(n->library, "nvmlShutdown", &n->shutdown);
    look_up(n->library, "nvmlSystemGetDriverVersion", &n->driver_version);
    look_up(n->library, "nvmlDeviceGetCount_v2", &n->device_count);
    look_up(n->library, "nvmlDeviceGetHandleByIndex_v2", &n->device_by_index);
    look_up(n->library, "nvmlDeviceGetName", &n->device_name);
    look_up(n->library, "nvmlDeviceGetMemoryInfo", &n->memory_info);
    look_up(n->library, "nvmlDeviceGetCudaComputeCapability", &n->capability);
    look_up(n->library, "nvmlDeviceGetNvLinkState", &n->link_state);
    look_up(n->library, "nvmlDeviceGetCurrPcieLinkGeneration", &n->pcie_generation);
    look_up(n->library, "nvmlDeviceGetCurrPcieLinkWidth", &n->pcie_width);
    look_up(n->library, "nvmlDeviceGetMaxPcieLinkWidth", &n->pcie_width_max);
    look_up(n->library, "nvmlDeviceGetTotalEccErrors", &n->ecc_errors);
    look_up(n->library, "nvmlDeviceGetPersistenceMode", &n->persistence);
    look_up(n->library, "nvmlDeviceGetMaxClockInfo", &n->max_clock);
    look_up(n->library, "nvmlDeviceGetMigMode", &n->mig_mode);
    if (n->init && n->shutdown && n->device_count && n->device_by_index && n->device_name &&
        n->memory_info && n->init() == 0) {
        return true;
    }
    (void)dlclose(n->library);
    return false;
}

static unsigned count_links(const struct nvml *n, nvml_device device)
{
    unsigned count = 0;
    for (unsigned i = 0; n->link_state && i < NVML_LINKS_MAX; i++) {
        unsigned active = 0;
        if (n->link_state(device, i, &active) == 0) count += active != 0;
    }
    return count;
}

/* What keeps a GPU from its best. */
static void look_at_faults(struct doctor *d, const struct nvml *n, nvml_device device, unsigned i)
{
    unsigned width = 0, width_max = 0, mig = 0, pending = 0;
    unsigned long long errors = 0;
    int persistent = 1;
    if (n->ecc_errors &&
        n->ecc_errors(device, NVML_MEMORY_ERROR_UNCORRECTED, NVML_VOLATILE_ECC, &errors) == 0 &&
        errors) {
        doctor_find(d, FINDING_BAD, "gpu", "reset the GPU or replace it",
                    "GPU %u has had %llu memory errors that could not be corrected", i, errors);
    }
    if (n->pcie_width && n->pcie_width_max && n->pcie_width(device, &width) == 0 &&
        n->pcie_width_max(device, &width_max) == 0 && width < width_max) {
        doctor_find(d, FINDING_WARN, "gpu", "look at the slot, the riser and the BIOS",
                    "GPU %u uses %u of %u PCIe lanes: weights load slower", i, width, width_max);
    }
    if (n->persistence && n->persistence(device, &persistent) == 0 && !persistent) {
        doctor_find(d, FINDING_NOTE, "gpu", "nvidia-smi -pm 1, or start nvidia-persistenced",
                    "GPU %u is not persistent: the first use of the driver takes seconds", i);
    }
    if (n->mig_mode && n->mig_mode(device, &mig, &pending) == 0 && mig) {
        doctor_find(d, FINDING_NOTE, "gpu", "nvidia-smi -mig 0, unless it is meant",
                    "GPU %u is divided (MIG): a part has its share of memory and speed", i);
    }
}

static void look_at_gpu(struct doctor *d, const struct nvml *n, unsigned i)
{
    char name[NVML_TEXT_BYTES] = "", a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    char kind[24] = "", link[48] = "";
    struct nvml_memory memory = {0};
    unsigned generation = 0, width = 0, clock = 0;
    int major = 0, minor = 0; /* 0: not known */
    nvml_device device;
    if (n->device_by_index(i, &device) != 0) {
        doctor_find(d, FINDING_BAD, "gpu", "dmesg | grep -i xid tells why; reset the GPU",
                    "GPU %u does not answer", i);
        return;
    }
    (void)n->device_name(device, name, sizeof name);
    (void)n->memory_info(device, &memory);
    if (n->capability && n->capability(device, &major, &minor) == 0) {
        (void)snprintf(kind, sizeof kind, " (sm_%d%d)", major, minor);
    }
    if (n->pcie_generation && n->pcie_width && n->pcie_generation(device, &generation) == 0 &&
        n->pcie_width(device, &width) == 0) {
        (void)snprintf(link, sizeof link, ", PCIe %u x%u", generation, width);
    }
    if (n->max_clock) (void)n->max_clock(device, NVML_CLOCK_SM, &clock);
    doctor_find(d, FINDING_OK, "gpu", "", "GPU %u: %s%s, %s of %s free, up to %u MHz%s, %u NVLinks",
                i, name, kind, size_text(a, memory.free), size_text(b, memory.total), clock, link,
                count_links(n, device));
    if (memory.total && memory.free < memory.total - memory.total / 20) {
        doctor_find(d, FINDING_WARN, "gpu", "nvidia-smi names the processes",
                    "GPU %u: somebody else uses %s of its memory", i,
                    size_text(a, memory.total - memory.free));
    }
    if (major > 0 && major * 10 + minor < CUDA_CAPABILITY_MIN) {
        doctor_find(d, FINDING_NOTE, "gpu", "", "GPU %u is too old: sm_%d or later is needed", i,
                    CUDA_CAPABILITY_MIN);
    }
    look_at_faults(d, n, device, i);
}

/* ---- peers: the devices as the program numbers them ------------------------------------------ */

static const char *const link_names[] = {
    [CUDA_LINK_NONE] = "not", [CUDA_LINK_PCIE] = "by PCIe", [CUDA_LINK_NVLINK] = "by NVLink"};

/* "1 by NVLink, 2 not"; returns the worst link. */
static enum cuda_link write_links(char *out, size_t bytes, int from, int n)
{
    enum cuda_link worst = CUDA_LINK_NVLINK;
    size_t len = 0;
    for (int to = 0; to < n; to++) {
        if (to == from) continue;
        enum cuda_link link = backend_cuda_link(from, to);
        if (link < worst) worst = link;
        int k = snprintf(out + len, bytes - len, "%s%d %s", len ? ", " : "", to, link_names[link]);
        if (k < 0 || (size_t)k >= bytes - len) break;
        len += (size_t)k;
    }
    return worst;
}

static void look_at_peers(struct doctor *d)
{
    static const enum finding_level levels[] = {[CUDA_LINK_NONE] = FINDING_WARN,
                                                [CUDA_LINK_PCIE] = FINDING_NOTE,
                                                [CUDA_LINK_NVLINK] = FINDING_OK};
    static const char *const advice[] = {
        [CUDA_LINK_NONE] = "give --devices those that reach each other, or see nvidia-smi topo -m",
        [CUDA_LINK_PCIE] = "ranks wait longer for each other than over NVLink",
        [CUDA_LINK_NVLINK] = ""};
    const int n = backend_cuda_count();
    char links[FINDING_TEXT_BYTES - 32];
    if (n < 2) {
        doctor_find(d, FINDING_OK, "peers", "", "%s",
                    n ? "one GPU for this program: ranks on GPUs need more"
                      : "no GPU for this program: ranks are those of the processor");
    }
    for (int from = 0; from < n && n >= 2; from++) {
        enum cuda_link worst = write_links(links, sizeof links, from, n);
        doctor_find(d, levels[worst], "peers", advice[worst], "device %d reaches %s", from, links);
    }
}

/* ---- all of it ------------------------------------------------------------------------------ */

static void look_at_driver(struct doctor *d, const struct settings *s)
{
    bool wants = strcmp(s->backend, "cuda") == 0;
    char line[128];
    if (doctor_read_line("/proc/driver/nvidia/version", line, sizeof line)) {
        doctor_find(
            d, FINDING_BAD, "gpu",
            "install the driver's user libraries (libnvidia-ml.so.1) or start the container "
            "with --gpus all",
            "the kernel has NVIDIA's driver, but its libraries are not here");
    } else {
        doctor_find(d, wants ? FINDING_BAD : FINDING_NOTE, "gpu",
                    wants ? "install the driver, or leave --backend cuda out" : "",
                    "no NVIDIA driver: models run on the processor");
    }
}

/* There are GPUs, and this program sees none: a failure, unless the processor is asked for. */
static void look_at_unused(struct doctor *d, const struct settings *s)
{
    bool asked = strcmp(s->backend, "cpu") == 0 || strcmp(s->backend, "ref") == 0;
    doctor_find(d, asked ? FINDING_NOTE : FINDING_BAD, "gpu",
                "build with nvcc 12.8 or later on the path: `make`, or the preset cuda; or ask for "
                "the processor with --backend cpu",
                "this program cannot use any GPU here: models run on the processor");
}

void doctor_look_at_gpus(struct doctor *d, const struct settings *s)
{
    struct nvml n;
    char version[NVML_TEXT_BYTES] = "?";
    unsigned count = 0;
    if (!open_nvml(&n)) {
        look_at_driver(d, s);
        look_at_peers(d);
        return;
    }
    if (n.driver_version) (void)n.driver_version(version, sizeof version);
    (void)n.device_count(&count);
    doctor_find(d, count ? FINDING_OK : FINDING_WARN, "gpu",
                count ? "" : "start the container with --gpus all; see CUDA_VISIBLE_DEVICES",
                "driver %s, %u GPUs", version, count);
    for (unsigned i = 0; i < count; i++) look_at_gpu(d, &n, i);
    if (count && backend_cuda_count() == 0) {
        look_at_unused(d, s);
    }
    look_at_peers(d);
    (void)n.shutdown();
    (void)dlclose(n.library);
}
