/* A stand-in for libnvidia-ml.so.1: NVML without a GPU, told by a scenario file what to answer.

   The scenario is $STAND_IN_SCENARIO, else `nvml` beside this library, else `nodes/$SLURMD_NODENAME/nvml` beside it;
   without one there is no driver (9). It is read again at each nvmlInitWithFlags. Each of its lines is `key value`:

     count 8                            driver, nvml, cuda: strings and a number
     gpu.3.remap_pending 1              a value; the keys are those of fleetctl/health/readings.py and a few more
     gpu.3.remap_pending !3             asking for it answers NVML code 3
     gpu.3.clock_reasons 1|8|1          the first asking answers 1, the next 8, all later ones 1
     gpu.3.fabric_state 2/2/3           the same, counted by nvmlInitWithFlags in place of askings
     gpu.3.link.state 1 1 0 !999 ...    one for each NVLink, in each of the forms above
     gpu.3.field.230 !2                 what nvmlDeviceGetFieldValues says of this field only; `field.165@7`: of link 7
     gpu.3.processes 4711:1048576 4712:?   pid:bytes; `processes_then`: what the second of the two calls finds
     gpu.3.handle !15                   counted, yet without a handle
     pair.0.1.p2p 1                     also pair.0.1.topology
     call.nvmlDeviceGetFieldValues@3 code 999     `@3`: on this GPU only; `*` in place of the name: any call
     call.nvmlInitWithFlags hang        `code N`, `sleep SECONDS`, `hang` (deaf to all but SIGKILL), `hang_d` (the same,
                                        in uninterruptible sleep), `die`; `first N` after it: only the first N calls

   A value that is not there is NOT_SUPPORTED. Counts of askings and inits are kept in files in `turns/` beside the
   scenario, so that they go on in the next process. Where a file `calls` lies beside the scenario, each call adds a line
   `name index` (index of the GPU, or -) to it. */

#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int uint;
typedef unsigned long long ull;

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, VERSION_MISMATCH = 25,
};
enum { GPUS = 64, MIG_SLOTS = 8, LINKS = 36, NODE = -1, FIELDS = 308 };

/* ---- NVML's structs; stand_in_size() lets a test compare them with nvidia-ml-py's ---- */

struct pci_info { char legacy[16]; uint domain, bus, device, device_id, subsystem_id; char bus_id[32]; };
struct memory { ull total, free, used; };
struct memory_v2 { uint version; ull total, reserved, free, used; };
struct field_value {
    uint32_t field, scope; int64_t timestamp, latency; uint type; int code;
    union { double d; uint ui; unsigned long ul; ull u; long long s; int si; unsigned short us; } value;
};
struct process_info { uint pid; ull memory; uint gpu_instance, compute_instance; };
struct event_data { void *device; ull type, data; uint gpu_instance, compute_instance; };
struct sram_status {
    uint version; ull agg_parity, agg_secded, agg_corrected, vol_parity, vol_secded, vol_corrected, buckets[5];
    uint threshold;
};
struct fabric { uint8_t cluster[16]; int status; uint32_t clique; uint8_t state; };
struct fabric_v2 { uint version; uint8_t cluster[16]; int status; uint32_t clique; uint8_t state; uint32_t mask; };
struct fabric_v3 {
    uint version; uint8_t cluster[16]; int status; uint32_t clique; uint8_t state; uint32_t mask; uint8_t summary;
};
struct margin { uint version; int degrees; };
struct temperature { uint version, sensor; int degrees; };
struct link_info { uint version, encrypted; };
struct link_info_v2 { uint version, encrypted; struct { uint8_t bytes[16]; } firmware[100]; uint firmwares; };
struct utilization { uint gpu, memory; };

#define VERSION(kind, number) ((uint)sizeof(struct kind) | (uint)(number) << 24)

uint stand_in_size(const char *name) {
#define SIZE(kind) if (strcmp(name, #kind) == 0) return (uint)sizeof(struct kind);
    SIZE(pci_info) SIZE(memory) SIZE(memory_v2) SIZE(field_value) SIZE(process_info) SIZE(event_data) SIZE(sram_status)
    SIZE(fabric) SIZE(fabric_v2) SIZE(fabric_v3) SIZE(margin) SIZE(temperature) SIZE(link_info) SIZE(link_info_v2)
    SIZE(utilization)
    return 0;
}

/* ---- the scenario ---- */

struct entry { const char *key, *value; };

static struct { char folder[PATH_MAX], *text; struct entry *entries; size_t count; int counting; long init; } scenario;
static int users; /* nvmlInitWithFlags minus nvmlShutdown */

struct device { int gpu, mig; };
static struct device devices[GPUS * (MIG_SLOTS + 1)];

static int by_key(const void *left, const void *right) {
    return strcmp(((const struct entry *)left)->key, ((const struct entry *)right)->key);
}

static void fail(const char *what, const char *path) {
    fprintf(stderr, "stand-in libnvidia-ml: %s %s\n", what, path);
    abort();
}

static int find_scenario(char *path) {
    const char *given = getenv("STAND_IN_SCENARIO"), *node = getenv("SLURMD_NODENAME");
    Dl_info self;
    if (given && *given) {
        snprintf(path, PATH_MAX, "%s", given);
        return access(path, R_OK) == 0;
    }
    if (!dladdr((void *)(uintptr_t)stand_in_size, &self) || !self.dli_fname)
        return 0;
    const char *slash = strrchr(self.dli_fname, '/');
    int length = slash ? (int)(slash - self.dli_fname) : 1;
    const char *folder = slash ? self.dli_fname : ".";
    snprintf(path, PATH_MAX, "%.*s/nvml", length, folder);
    if (access(path, R_OK) == 0)
        return 1;
    if (!node || !*node)
        return 0;
    snprintf(path, PATH_MAX, "%.*s/nodes/%s/nvml", length, folder, node);
    return access(path, R_OK) == 0;
}

static void split_lines(char *text) {
    size_t room = 0;
    for (char *line = text, *next; line && *line; line = next) {
        if ((next = strchr(line, '\n')))
            *next++ = 0;
        char *space = strchr(line, ' ');
        if (!space || *line == '#')
            continue;
        *space = 0;
        if (scenario.count == room && !(scenario.entries = realloc(scenario.entries,
                                                                   (room += 1024) * sizeof *scenario.entries)))
            fail("no memory for", line);
        scenario.entries[scenario.count++] = (struct entry){line, space + 1};
    }
    qsort(scenario.entries, scenario.count, sizeof *scenario.entries, by_key);
}

static int read_scenario(void) {
    char path[PATH_MAX];
    free(scenario.text);
    free(scenario.entries);
    memset(&scenario, 0, sizeof scenario);
    if (!find_scenario(path))
        return 0;
    FILE *file = fopen(path, "re");
    size_t length = 0;
    if (!file || getdelim(&scenario.text, &length, 0, file) < 0)
        fail("cannot read", path);
    fclose(file);
    split_lines(scenario.text);
    snprintf(scenario.folder, PATH_MAX, "%.*s", (int)(strrchr(path, '/') ? strrchr(path, '/') - path : 1),
             strrchr(path, '/') ? path : ".");
    snprintf(path, PATH_MAX, "%.4000s/calls", scenario.folder);
    scenario.counting = access(path, W_OK) == 0;
    return 1;
}

__attribute__((format(printf, 1, 2))) static const char *find(const char *format, ...) {
    char key[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    struct entry wanted = {key, NULL}, *found = NULL;
    if (scenario.count)
        found = bsearch(&wanted, scenario.entries, scenario.count, sizeof wanted, by_key);
    return found ? found->value : NULL;
}

/* The number of this asking, from 1, over all processes: the length of a file that each asking makes longer. */
static long turn(const char *key) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.3800s/turns/%.200s", scenario.folder, key);
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || write(file, ".", 1) != 1)
        fail("cannot count in", path);
    long now = (long)lseek(file, 0, SEEK_CUR);
    close(file);
    return now;
}

/* The token that `text` (up to a space) has for this asking. */
static const char *this_turn(const char *key, const char *text) {
    size_t length = strcspn(text, " ");
    char mark = memchr(text, '|', length) ? '|' : memchr(text, '/', length) ? '/' : 0;
    if (!mark)
        return text;
    if (mark == '/' && !scenario.init)
        scenario.init = turn("init");
    long now = mark == '|' ? turn(key) : scenario.init;
    for (const char *end; --now > 0 && (end = memchr(text, mark, strcspn(text, " "))); )
        text = end + 1;
    return text;
}

static int number_of(const char *token, ull *value) {
    if (*token == '!')
        return atoi(token + 1);
    *value = *token == '-' ? (ull)strtoll(token, NULL, 0) : strtoull(token, NULL, 0);
    return SUCCESS;
}

/* gpu.N.KEY as a number; NVML's code when there is none. */
static int number(int gpu, const char *key, ull *value) {
    char name[128];
    const char *found = find("gpu.%d.%s", gpu, key);
    *value = 0;
    if (!found)
        return NOT_SUPPORTED;
    snprintf(name, sizeof name, "gpu.%d.%s", gpu, key);
    return number_of(this_turn(name, found), value);
}

static int number_uint(int gpu, const char *key, uint *answer) {
    ull value;
    int code = number(gpu, key, &value);
    if (!code)
        *answer = (uint)value;
    return code;
}

static ull number_or(int gpu, const char *key, ull otherwise) {
    ull value;
    return number(gpu, key, &value) ? otherwise : value;
}

static int text_of(int gpu, const char *key, char *answer, uint room) {
    const char *found = find("gpu.%d.%s", gpu, key);
    if (!found)
        return NOT_SUPPORTED;
    if (*found == '!')
        return atoi(found + 1);
    if (strlen(found) >= room)
        return INSUFFICIENT_SIZE;
    strcpy(answer, found);
    return SUCCESS;
}

/* One link's number of the list gpu.N.link.KEY; past the last link, what this kind of GPU says there. */
static int link_number(int gpu, uint link, const char *key, ull *value) {
    char name[128];
    const char *found = find("gpu.%d.link.%s", gpu, key);
    if (link >= LINKS)
        return INVALID_ARGUMENT;
    if (link >= number_or(gpu, "link_slots", 0))
        return (int)number_or(gpu, "link_end", NOT_SUPPORTED);
    for (uint skip = link; found && skip; skip--)
        if ((found = strchr(found, ' ')))
            found++;
    if (!found)
        return NOT_SUPPORTED;
    snprintf(name, sizeof name, "gpu.%d.link.%s.%u", gpu, key, link);
    return number_of(this_turn(name, found), value);
}

static int all_links(int gpu, const char *key, ull *total) {
    uint slots = (uint)number_or(gpu, "link_slots", 0);
    *total = 0;
    for (uint link = 0; link < slots; link++) {
        ull one;
        int code = link_number(gpu, link, key, &one);
        if (code)
            return code;
        *total += one;
    }
    return slots ? SUCCESS : NOT_SUPPORTED;
}

/* ---- what happens at each call ---- */

static void nap(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0) {}
}

static void hang(int uninterruptibly) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    /* The parent of a vfork sleeps uninterruptibly until its child ends, which is when the parent is killed. */
    if (uninterruptibly && vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    for (;;)
        pause();
}

static void count_call(const char *name, int gpu) {
    char path[PATH_MAX], line[128];
    snprintf(path, sizeof path, "%.4000s/calls", scenario.folder);
    int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    int length = gpu >= 0 ? snprintf(line, sizeof line, "%s %d\n", name, gpu)
                          : snprintf(line, sizeof line, "%s -\n", name);
    if (file < 0 || write(file, line, (size_t)length) != length)
        fail("cannot write", path);
    close(file);
}

static int misbehave(const char *name, int gpu) {
    char key[128];
    const char *what = NULL, *first;
    snprintf(key, sizeof key, "call.%s@%d", name, gpu);
    if (gpu < 0 || !(what = find("%s", key))) {
        snprintf(key, sizeof key, "call.%s", name);
        what = find("%s", key);
    }
    if (!what && gpu >= 0) {
        snprintf(key, sizeof key, "call.*@%d", gpu);
        what = find("%s", key);
    }
    if (!what || ((first = strstr(what, " first ")) && turn(key) > atol(first + 7)))
        return SUCCESS;
    if (strncmp(what, "code ", 5) == 0)
        return atoi(what + 5);
    if (strncmp(what, "sleep ", 6) == 0)
        nap(atof(what + 6));
    else if (strncmp(what, "hang", 4) == 0)
        hang(what[4] == '_');
    else if (strncmp(what, "die", 3) == 0)
        raise(SIGSEGV);
    else
        fail("does not understand", what);
    return SUCCESS;
}

static int enter(const char *name, int gpu) {
    if (!users)
        return UNINITIALIZED;
    if (scenario.counting)
        count_call(name, gpu);
    return misbehave(name, gpu);
}

static int enter_device(const char *name, const struct device *device) {
    static const char *of_instances[] = {"nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2",
                                         "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetName"};
    if (!users)
        return UNINITIALIZED;
    if (device < devices || device >= devices + sizeof devices / sizeof *devices)
        return INVALID_ARGUMENT;
    int code = enter(name, device->gpu);
    if (code || device->mig < 0)
        return code;
    for (size_t known = 0; known < sizeof of_instances / sizeof *of_instances; known++)
        if (strcmp(name, of_instances[known]) == 0)
            return SUCCESS;
    return NOT_SUPPORTED;
}

#define ENTER() do { int code_ = enter(__func__, NODE); if (code_) return code_; } while (0)
#define ENTER_DEVICE() do { int code_ = enter_device(__func__, device); if (code_) return code_; } while (0)
#define DEVICE const struct device *device

/* ---- the library and the node ---- */

int nvmlInitWithFlags(uint flags) {
    if (flags & ~3u)
        return INVALID_ARGUMENT;
    if (!read_scenario())
        return DRIVER_NOT_LOADED;
    for (size_t slot = 0; slot < sizeof devices / sizeof *devices; slot++)
        devices[slot] = (struct device){(int)(slot % GPUS), (int)(slot / GPUS) - 1};
    users++;
    int code = enter(__func__, NODE);
    users -= code != SUCCESS;
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    ENTER();
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    static const char *texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires restart",
        "The operating system has blocked the request.", "RM has detected an NVML/RM version mismatch.",
        "In use by another client", "Insufficient Memory", "No data", "vGPU Ecc not supported",
        "Insufficient Resources", "Frequency not supported", "Argument version mismatch", "Deprecated", "Not Ready",
        "GPU not found", "Invalid State"};
    return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "Unknown Error";
}

static int node_text(const char *key, char *answer, uint room) {
    const char *found = find("%s", key);
    if (!found || strlen(found) >= room)
        return found ? INSUFFICIENT_SIZE : NOT_SUPPORTED;
    strcpy(answer, found);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, uint room) {
    ENTER();
    return node_text("driver", version, room);
}

int nvmlSystemGetNVMLVersion(char *version, uint room) {
    ENTER();
    return node_text("nvml", version, room);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER();
    *version = find("cuda") ? atoi(find("cuda")) : 0;
    return SUCCESS;
}

static uint gpu_count(void) {
    const char *count = find("count");
    return count ? (uint)atoi(count) : 0;
}

int nvmlDeviceGetCount_v2(uint *count) {
    ENTER();
    *count = gpu_count();
    return SUCCESS;
}

static int handle(int gpu, struct device **device) {
    ull unused;
    int code = number(gpu, "handle", &unused);
    if (code && code != NOT_SUPPORTED) /* NOT_SUPPORTED: the scenario has no such line */
        return code;
    *device = &devices[gpu];
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, struct device **device) {
    int code = enter(__func__, index < gpu_count() ? (int)index : NODE);
    if (code)
        return code;
    return index < gpu_count() ? handle((int)index, device) : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device) {
    ENTER();
    for (uint gpu = 0; gpu < gpu_count(); gpu++) {
        const char *own = find("gpu.%u.uuid", gpu);
        if (own && strcmp(own, uuid) == 0)
            return handle((int)gpu, device);
    }
    return NOT_FOUND;
}

struct address { uint domain, bus, device, function; };

static int address_of(const char *text, struct address *address) {
    return text && sscanf(text, "%x:%x:%x.%x", &address->domain, &address->bus, &address->device,
                          &address->function) == 4;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct device **device) {
    struct address wanted, own;
    ENTER();
    if (!address_of(bus_id, &wanted))
        return INVALID_ARGUMENT;
    for (uint gpu = 0; gpu < gpu_count(); gpu++)
        if (address_of(find("gpu.%u.pci", gpu), &own) && memcmp(&own, &wanted, sizeof own) == 0)
            return handle((int)gpu, device);
    return NOT_FOUND;
}

/* ---- one GPU: identity ---- */

static int fill_pci(const char *text, uint device_id, struct pci_info *info) {
    struct address at;
    if (!address_of(text, &at))
        return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.%X", at.domain & 0xffff, at.bus & 0xff,
             at.device & 0xff, at.function & 0xf);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.%X", at.domain, at.bus & 0xff, at.device & 0xff,
             at.function & 0xf);
    info->domain = at.domain;
    info->bus = at.bus;
    info->device = at.device;
    info->device_id = device_id;
    info->subsystem_id = device_id ? 0x16c110de : 0;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(DEVICE, struct pci_info *info) {
    ENTER_DEVICE();
    return fill_pci(find("gpu.%d.pci", device->gpu), (uint)number_or(device->gpu, "device_id", 0), info);
}

int nvmlDeviceGetUUID(DEVICE, char *uuid, uint room) {
    ENTER_DEVICE();
    if (device->mig < 0)
        return text_of(device->gpu, "uuid", uuid, room);
    snprintf(uuid, room, "MIG-%08x-0000-0000-0000-%012x", (uint)device->gpu, (uint)device->mig);
    return SUCCESS;
}

#define TEXT_CALL(name, key)                               \
    int name(DEVICE, char *answer, uint room) {            \
        ENTER_DEVICE();                                    \
        return text_of(device->gpu, key, answer, room);    \
    }
#define UINT_CALL(name, key)                               \
    int name(DEVICE, uint *answer) {                       \
        ENTER_DEVICE();                                    \
        return number_uint(device->gpu, key, answer);      \
    }
#define ULL_CALL(name, key)                                \
    int name(DEVICE, ull *answer) {                        \
        ENTER_DEVICE();                                    \
        return number(device->gpu, key, answer);           \
    }

TEXT_CALL(nvmlDeviceGetSerial, "serial")
TEXT_CALL(nvmlDeviceGetName, "name")
UINT_CALL(nvmlDeviceGetMinorNumber, "minor")
UINT_CALL(nvmlDeviceGetPersistenceMode, "persistence")
UINT_CALL(nvmlDeviceGetPerformanceState, "performance_state")
UINT_CALL(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")
UINT_CALL(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
UINT_CALL(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UINT_CALL(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_max_generation")
UINT_CALL(nvmlDeviceGetMaxPcieLinkWidth, "pcie_max_width")
UINT_CALL(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_gpu_max_generation")
UINT_CALL(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
UINT_CALL(nvmlDeviceGetPowerUsage, "power_mw")
UINT_CALL(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
UINT_CALL(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
UINT_CALL(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_mw")
ULL_CALL(nvmlDeviceGetCurrentClocksEventReasons, "clock_reasons")
ULL_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, "clock_reasons")
ULL_CALL(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")

/* ---- one GPU: memory and its errors ---- */

int nvmlDeviceGetMemoryInfo(DEVICE, struct memory *memory) {
    ENTER_DEVICE();
    int code = number(device->gpu, "memory_total_bytes", &memory->total);
    if (!code)
        code = number(device->gpu, "memory_used_bytes", &memory->used);
    memory->used += number_or(device->gpu, "memory_reserved_bytes", 0); /* the first version counts it as used */
    memory->free = memory->total - memory->used;
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(DEVICE, struct memory_v2 *memory) {
    ENTER_DEVICE();
    if (memory->version != VERSION(memory_v2, 2))
        return VERSION_MISMATCH;
    int code = number(device->gpu, "memory_total_bytes", &memory->total);
    if (!code)
        code = number(device->gpu, "memory_used_bytes", &memory->used);
    memory->reserved = number_or(device->gpu, "memory_reserved_bytes", 0);
    memory->free = memory->total - memory->used - memory->reserved;
    return code;
}

int nvmlDeviceGetUtilizationRates(DEVICE, struct utilization *rates) {
    ENTER_DEVICE();
    rates->memory = (uint)number_or(device->gpu, "utilization_memory", 0);
    return number_uint(device->gpu, "utilization", &rates->gpu);
}

int nvmlDeviceGetEccMode(DEVICE, uint *current, uint *pending) {
    ENTER_DEVICE();
    int code = number_uint(device->gpu, "ecc_mode", current);
    return code ? code : number_uint(device->gpu, "ecc_pending", pending);
}

static int ecc_total(int gpu, uint uncorrected, uint aggregate, ull *count) {
    static const char *keys[2][2] = {{"ecc_corrected_volatile", "ecc_corrected_aggregate"},
                                     {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"}};
    return uncorrected > 1 || aggregate > 1 ? INVALID_ARGUMENT : number(gpu, keys[uncorrected][aggregate], count);
}

int nvmlDeviceGetTotalEccErrors(DEVICE, uint uncorrected, uint aggregate, ull *count) {
    ENTER_DEVICE();
    return ecc_total(device->gpu, uncorrected, aggregate, count);
}

/* All errors are of the DRAM (2), but the uncorrected ones of `sram_uncorrected` (7). */
static int ecc_at(int gpu, uint uncorrected, uint aggregate, uint location, ull *count) {
    ull sram = uncorrected && aggregate ? number_or(gpu, "sram_uncorrected", 0) : 0;
    int code = ecc_total(gpu, uncorrected, aggregate, count);
    if (code)
        return code;
    if (location == 7)
        *count = sram;
    else if (location == 2)
        *count -= sram < *count ? sram : *count;
    else
        *count = 0;
    return location > 7 ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlDeviceGetMemoryErrorCounter(DEVICE, uint uncorrected, uint aggregate, uint location, ull *count) {
    ENTER_DEVICE();
    return ecc_at(device->gpu, uncorrected, aggregate, location, count);
}

int nvmlDeviceGetSramEccErrorStatus(DEVICE, struct sram_status *status) {
    ull count, threshold;
    ENTER_DEVICE();
    if (status->version != VERSION(sram_status, 1))
        return VERSION_MISMATCH;
    int code = number(device->gpu, "sram_uncorrected", &count);
    if (!code)
        code = number(device->gpu, "sram_threshold", &threshold);
    if (code)
        return code;
    memset(status, 0, sizeof *status);
    status->version = VERSION(sram_status, 1);
    status->agg_parity = count / 3; /* of both kinds, so that a reader must add them up */
    status->agg_secded = count - count / 3;
    status->buckets[0] = count;
    status->threshold = (uint)threshold;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(DEVICE, uint *corrected, uint *uncorrected, uint *pending, uint *failure) {
    ENTER_DEVICE();
    int code = number_uint(device->gpu, "remap_corrected", corrected);
    code = code ? code : number_uint(device->gpu, "remap_uncorrected", uncorrected);
    code = code ? code : number_uint(device->gpu, "remap_pending", pending);
    return code ? code : number_uint(device->gpu, "remap_failure", failure);
}

/* All retired pages are those of double bit errors (1). */
static int retired_pages(int gpu, uint cause, uint *count, ull *addresses, ull **times) {
    ull pages;
    int code = number(gpu, "retired_pages", &pages);
    if (code)
        return code;
    pages = cause == 1 ? pages : 0;
    if (!addresses || *count < pages) {
        *count = (uint)pages;
        return pages ? INSUFFICIENT_SIZE : SUCCESS;
    }
    *count = (uint)pages;
    for (ull page = 0; page < pages; page++) {
        addresses[page] = 0x7f0000 + 0x1000 * page;
        if (times)
            (*times)[page] = 1700000000000000ull + page;
    }
    return SUCCESS;
}

int nvmlDeviceGetRetiredPages(DEVICE, uint cause, uint *count, ull *addresses) {
    ENTER_DEVICE();
    return retired_pages(device->gpu, cause, count, addresses, NULL);
}

/* nvidia-ml-py leaves the last argument out when it asks for the size: `times` is looked at with `addresses` only. */
int nvmlDeviceGetRetiredPages_v2(DEVICE, uint cause, uint *count, ull *addresses, ull *times) {
    ENTER_DEVICE();
    return retired_pages(device->gpu, cause, count, addresses, &times);
}

/* ---- one GPU: heat and processes ---- */

int nvmlDeviceGetTemperature(DEVICE, uint sensor, uint *degrees) {
    ENTER_DEVICE();
    return sensor ? INVALID_ARGUMENT : number_uint(device->gpu, "temperature_c", degrees);
}

int nvmlDeviceGetTemperatureV(DEVICE, struct temperature *answer) {
    ENTER_DEVICE();
    if (answer->version != VERSION(temperature, 1))
        return VERSION_MISMATCH;
    ull degrees;
    int code = answer->sensor ? INVALID_ARGUMENT : number(device->gpu, "temperature_c", &degrees);
    if (!code)
        answer->degrees = (int)degrees;
    return code;
}

int nvmlDeviceGetMarginTemperature(DEVICE, struct margin *margin) {
    ENTER_DEVICE();
    if (margin->version != VERSION(margin, 1))
        return VERSION_MISMATCH;
    ull degrees;
    int code = number(device->gpu, "temperature_margin_c", &degrees);
    if (!code)
        margin->degrees = (int)degrees;
    return code;
}

static int processes(int gpu, const char *key, uint *count, struct process_info *answer) {
    const char *found = answer ? find("gpu.%d.%s_then", gpu, key) : NULL;
    if (!found && !(found = find("gpu.%d.%s", gpu, key)))
        found = "";
    if (*found == '!')
        return atoi(found + 1);
    uint running = *found ? 1 : 0, room = answer ? *count : 0;
    for (const char *at = found; *at; at++)
        running += *at == ' ';
    *count = running;
    if (running > room)
        return INSUFFICIENT_SIZE;
    for (uint slot = 0; slot < running; slot++, found++) {
        char *end;
        answer[slot].pid = (uint)strtoul(found, &end, 10);
        answer[slot].memory = end[1] == '?' ? ULLONG_MAX : strtoull(end + 1, NULL, 10);
        answer[slot].gpu_instance = answer[slot].compute_instance = UINT_MAX;
        found += strcspn(found, " ");
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(DEVICE, uint *count, struct process_info *answer) {
    ENTER_DEVICE();
    return processes(device->gpu, "processes", count, answer);
}

int nvmlDeviceGetComputeRunningProcesses_v2(DEVICE, uint *count, struct process_info *answer) {
    ENTER_DEVICE();
    return processes(device->gpu, "processes", count, answer);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(DEVICE, uint *count, struct process_info *answer) {
    ENTER_DEVICE();
    return processes(device->gpu, "graphics_processes", count, answer);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(DEVICE, uint *count, struct process_info *answer) {
    ENTER_DEVICE();
    return processes(device->gpu, "mps_processes", count, answer);
}

/* ---- NVLink and the fabric ---- */

static int link_uint(int gpu, uint link, const char *key, uint *answer) {
    ull value = 0;
    int code = link_number(gpu, link, key, &value);
    if (!code)
        *answer = (uint)value;
    return code;
}

int nvmlDeviceGetNvLinkState(DEVICE, uint link, uint *up) {
    ENTER_DEVICE();
    return link_uint(device->gpu, link, "state", up);
}

int nvmlDeviceGetNvLinkVersion(DEVICE, uint link, uint *version) {
    ull state;
    ENTER_DEVICE();
    int code = link_number(device->gpu, link, "state", &state);
    return code ? code : number_uint(device->gpu, "link_version", version);
}

/* Says yes for every link number, as the driver does. */
int nvmlDeviceGetNvLinkCapability(DEVICE, uint link, uint capability, uint *answer) {
    ENTER_DEVICE();
    if (link >= LINKS || capability > 5)
        return INVALID_ARGUMENT;
    *answer = 1;
    return number_or(device->gpu, "link_slots", 0) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkErrorCounter(DEVICE, uint link, uint counter, ull *count) {
    static const char *keys[] = {"replays", "recoveries", "crc_errors", "crc_data_errors"};
    ENTER_DEVICE();
    return counter > 3 ? INVALID_ARGUMENT : link_number(device->gpu, link, keys[counter], count);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(DEVICE, uint link, struct pci_info *info) {
    ull state;
    ENTER_DEVICE();
    int code = link_number(device->gpu, link, "state", &state);
    return code ? code : fill_pci(find("gpu.%d.link_peer", device->gpu), 0, info);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(DEVICE, uint link, uint *type) {
    ull state;
    ENTER_DEVICE();
    int code = link_number(device->gpu, link, "state", &state);
    return code ? code : number_uint(device->gpu, "link_peer_type", type);
}

int nvmlDeviceGetNvLinkInfo(DEVICE, struct link_info *info) {
    ENTER_DEVICE();
    if (info->version == VERSION(link_info_v2, 2))
        ((struct link_info_v2 *)(void *)info)->firmwares = 0;
    else if (info->version != VERSION(link_info, 1))
        return VERSION_MISMATCH;
    info->encrypted = 0;
    return number_or(device->gpu, "link_slots", 0) ? SUCCESS : NOT_SUPPORTED;
}

static int fabric_of(int gpu, struct fabric_v3 *answer) {
    ull state, status, mask, summary;
    int code = number(gpu, "fabric_state", &state);
    code = code ? code : number(gpu, "fabric_status", &status);
    code = code ? code : number(gpu, "fabric_mask", &mask);
    code = code ? code : number(gpu, "fabric_summary", &summary);
    if (code)
        return code;
    memset(answer, 0, sizeof *answer);
    answer->cluster[0] = (uint8_t)number_or(gpu, "fabric_cluster", 0);
    answer->clique = (uint32_t)number_or(gpu, "fabric_clique", 0);
    answer->status = (int)status;
    answer->state = (uint8_t)state;
    answer->mask = (uint32_t)mask;
    answer->summary = (uint8_t)summary;
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfo(DEVICE, struct fabric *answer) {
    struct fabric_v3 all;
    ENTER_DEVICE();
    int code = fabric_of(device->gpu, &all);
    if (code)
        return code;
    memcpy(answer->cluster, all.cluster, sizeof answer->cluster);
    answer->status = all.status;
    answer->clique = all.clique;
    answer->state = all.state;
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(DEVICE, void *answer) {
    struct fabric_v3 all;
    ENTER_DEVICE();
    uint version = *(uint *)answer, newest = (uint)number_or(device->gpu, "fabric_version", 3);
    size_t size = version == VERSION(fabric_v3, 3) ? sizeof all : sizeof(struct fabric_v2);
    if (version >> 24 > newest || (version != VERSION(fabric_v2, 2) && version != VERSION(fabric_v3, 3)))
        return VERSION_MISMATCH;
    int code = fabric_of(device->gpu, &all);
    all.version = version;
    if (!code)
        memcpy(answer, &all, size); /* the second version is the beginning of the third */
    return code;
}

/* ---- many values in one call ---- */

enum type { AS_UINT = 1, AS_ULL = 3, AS_INT = 5 };
enum of { OF_GPU, OF_LINK, OF_ALL_LINKS };

static const struct field { uint first, last; enum of of; enum type type; const char *key; uint first_link; } fields[] = {
    {1, 1, OF_GPU, AS_UINT, "ecc_mode", 0}, {2, 2, OF_GPU, AS_UINT, "ecc_pending", 0},
    {3, 3, OF_GPU, AS_ULL, "ecc_corrected_volatile", 0}, {4, 4, OF_GPU, AS_ULL, "ecc_uncorrected_volatile", 0},
    {5, 5, OF_GPU, AS_ULL, "ecc_corrected_aggregate", 0}, {6, 6, OF_GPU, AS_ULL, "ecc_uncorrected_aggregate", 0},
    {30, 30, OF_GPU, AS_ULL, "retired_pages", 0}, {31, 31, OF_GPU, AS_UINT, "retired_pending", 0},
    {93, 93, OF_GPU, AS_UINT, "retired_pending", 0},
    {32, 37, OF_LINK, AS_ULL, "crc_errors", 0}, {38, 38, OF_ALL_LINKS, AS_ULL, "crc_errors", 0},
    {39, 44, OF_LINK, AS_ULL, "crc_data_errors", 0}, {45, 45, OF_ALL_LINKS, AS_ULL, "crc_data_errors", 0},
    {46, 51, OF_LINK, AS_ULL, "replays", 0}, {52, 52, OF_ALL_LINKS, AS_ULL, "replays", 0},
    {53, 58, OF_LINK, AS_ULL, "recoveries", 0}, {59, 59, OF_ALL_LINKS, AS_ULL, "recoveries", 0},
    {83, 83, OF_GPU, AS_ULL, "energy_mj", 0}, {90, 90, OF_GPU, AS_UINT, "link_speed_mbps", 0},
    {91, 91, OF_GPU, AS_UINT, "link_count", 0}, {94, 94, OF_GPU, AS_UINT, "pcie_replays", 0},
    {96, 101, OF_LINK, AS_ULL, "crc_errors", 6}, {102, 107, OF_LINK, AS_ULL, "crc_data_errors", 6},
    {108, 113, OF_LINK, AS_ULL, "replays", 6}, {114, 119, OF_LINK, AS_ULL, "recoveries", 6},
    {142, 142, OF_GPU, AS_UINT, "remap_corrected", 0}, {143, 143, OF_GPU, AS_UINT, "remap_uncorrected", 0},
    {144, 144, OF_GPU, AS_UINT, "remap_pending", 0}, {145, 145, OF_GPU, AS_UINT, "remap_failure", 0},
    {147, 147, OF_GPU, AS_UINT, "link_switches", 0},
    {161, 161, OF_LINK, AS_ULL, "replays", LINKS}, {162, 162, OF_LINK, AS_ULL, "recoveries", LINKS},
    {163, 163, OF_LINK, AS_ULL, "crc_errors", LINKS}, {165, 165, OF_LINK, AS_UINT, "state", LINKS},
    {185, 186, OF_GPU, AS_UINT, "power_mw", 0}, {189, 190, OF_GPU, AS_UINT, "power_limit_mw", 0},
    {208, 208, OF_LINK, AS_ULL, "receive_errors", LINKS}, {211, 211, OF_LINK, AS_ULL, "integrity_errors", LINKS},
    {214, 214, OF_LINK, AS_ULL, "recovery_failed", LINKS}, {215, 215, OF_LINK, AS_ULL, "recovery_events", LINKS},
    {230, 230, OF_GPU, AS_UINT, "recovery_action", 0},
};

static int known_field(int gpu, struct field_value *wanted, ull *value) {
    for (size_t row = 0; row < sizeof fields / sizeof *fields; row++) {
        const struct field *field = &fields[row];
        if (wanted->field < field->first || wanted->field > field->last)
            continue;
        wanted->type = field->type;
        if (field->of == OF_GPU)
            return number(gpu, field->key, value);
        if (field->of == OF_ALL_LINKS)
            return all_links(gpu, field->key, value);
        /* `first_link` LINKS: the link is the scope; else each link has a field of its own. */
        uint link = field->first_link == LINKS ? wanted->scope : field->first_link + wanted->field - field->first;
        return link_number(gpu, link, field->key, value);
    }
    return wanted->field == 0 || wanted->field >= FIELDS ? INVALID_ARGUMENT : NOT_SUPPORTED;
}

static void fill_field(int gpu, struct field_value *wanted) {
    char key[64];
    struct timespec now;
    ull value = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    wanted->timestamp = now.tv_sec * 1000000ll + now.tv_nsec / 1000;
    wanted->latency = 7;
    wanted->code = known_field(gpu, wanted, &value);
    snprintf(key, sizeof key, "field.%u@%u", wanted->field, wanted->scope);
    if (!find("gpu.%d.%s", gpu, key))
        snprintf(key, sizeof key, "field.%u", wanted->field);
    if (find("gpu.%d.%s", gpu, key))
        wanted->code = number(gpu, key, &value);
    if (wanted->code)
        value = 0xdeadbeefdeadbeefull; /* nobody may use it */
    memset(&wanted->value, 0, sizeof wanted->value);
    if (wanted->type == AS_ULL || wanted->code)
        wanted->value.u = value;
    else
        wanted->value.ui = (uint)value;
}

int nvmlDeviceGetFieldValues(DEVICE, int count, struct field_value *values) {
    ENTER_DEVICE();
    if (count <= 0)
        return INVALID_ARGUMENT;
    for (int at = 0; at < count; at++)
        fill_field(device->gpu, &values[at]);
    return SUCCESS;
}

/* ---- two GPUs ---- */

static int pair_number(const struct device *one, const struct device *other, const char *key, uint *answer) {
    int low = one->gpu < other->gpu ? one->gpu : other->gpu, high = one->gpu < other->gpu ? other->gpu : one->gpu;
    char name[64];
    ull value;
    snprintf(name, sizeof name, "pair.%d.%d.%s", low, high, key);
    const char *found = find("%s", name);
    if (!found && !(found = find("pair.%s", key)))
        return NOT_SUPPORTED;
    int code = number_of(this_turn(name, found), &value);
    if (!code)
        *answer = (uint)value;
    return code;
}

int nvmlDeviceGetTopologyCommonAncestor(DEVICE, const struct device *other, uint *level) {
    ENTER_DEVICE();
    if (device->gpu == other->gpu)
        return INVALID_ARGUMENT;
    return pair_number(device, other, "topology", level);
}

int nvmlDeviceGetP2PStatus(DEVICE, const struct device *other, uint index, uint *status) {
    ENTER_DEVICE();
    if (index > 4 || device->gpu == other->gpu)
        return INVALID_ARGUMENT;
    ull links;
    if (index == 2 && (all_links(device->gpu, "state", &links) || !links)) {
        *status = 5; /* of NVLink, where there is none */
        return SUCCESS;
    }
    return pair_number(device, other, "p2p", status);
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(DEVICE, uint *current, uint *pending) {
    ENTER_DEVICE();
    int code = number_uint(device->gpu, "mig_mode", current);
    if (!code)
        *pending = *current;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(DEVICE, uint *count) {
    ull mode;
    ENTER_DEVICE();
    *count = number(device->gpu, "mig_mode", &mode) ? 0 : MIG_SLOTS - 1;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(DEVICE, uint index, struct device **instance) {
    ull mode;
    ENTER_DEVICE();
    int code = number(device->gpu, "mig_mode", &mode);
    if (code)
        return code;
    if (index >= MIG_SLOTS - 1)
        return INVALID_ARGUMENT;
    if (!mode || index >= number_or(device->gpu, "mig_devices", 0))
        return NOT_FOUND;
    *instance = &devices[(index + 1) * GPUS + (uint)device->gpu];
    return SUCCESS;
}

/* ---- events: none ever comes ---- */

int nvmlEventSetCreate(void **set) {
    static int anything;
    ENTER();
    *set = &anything;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(DEVICE, ull types, void *set) {
    ENTER_DEVICE();
    return types && set ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlEventSetWait_v2(void *set, struct event_data *data, uint milliseconds) {
    ENTER();
    if (!set || !data)
        return INVALID_ARGUMENT;
    nap(milliseconds / 1000.0);
    return TIMEOUT;
}

int nvmlEventSetFree(void *set) {
    ENTER();
    return set ? SUCCESS : INVALID_ARGUMENT;
}
