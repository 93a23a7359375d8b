// A CUDA runtime, driver, cuBLAS and NCCL whose kernels do nothing.
//
// With LD_PRELOAD, PyTorch's CUDA build runs its whole host code on it: allocators, streams, events, autograd's
// threads, ProcessGroupNCCL. Device memory is reserved and never touched, and every value that is copied from it
// is zero. Launches, copies and host waits are counted. build.py adds a function that returns 0 for every other
// symbol that PyTorch imports.
//
// PRETENDED_GPU_CARDS=2        number of cards (1)
// PRETENDED_GPU_GIB=0.5        memory of each card for a process (80)
// PRETENDED_GPU_ERROR=710:3000 every call fails with this CUDA error after that many launches
// PRETENDED_GPU_NCCL=FILE      each rank appends its NCCL calls to FILE.RANK

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))
#undef cudaGetDeviceProperties

enum Count { LAUNCH, PINNED_COPY, PAGEABLE_COPY, WAIT, COMPILATION, COUNTS };
static std::atomic<long> counts[COUNTS];
static void (*observer)(int) = nullptr;

static void count(Count what) {
  counts[what]++;
  if (observer && what >= PAGEABLE_COPY) observer(what);
}

EXPORTED void pretended_launch(int times) { counts[LAUNCH] += times; }
EXPORTED void pretended_counts(long* into) { for (int i = 0; i < COUNTS; i++) into[i] = counts[i]; }
EXPORTED void pretended_observe(void (*call)(int)) { observer = call; }

static const char* variable(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value && *value ? value : otherwise;
}

// A failed device fails every call, as after a device-side assert.
static cudaError_t state() {
  static int error = 0;
  static long after = -1;
  static bool read = sscanf(variable("PRETENDED_GPU_ERROR", ""), "%d:%ld", &error, &after) == 2;
  return read && counts[LAUNCH] > after ? (cudaError_t)error : cudaSuccess;
}
#define CHECK_STATE() if (cudaError_t failed = state()) return failed

// ---- devices

static const std::vector<int>& cards() {
  static const std::vector<int> visible = [] {
    std::vector<int> found;
    int there = atoi(variable("PRETENDED_GPU_CARDS", "1"));
    std::string listed = variable("CUDA_VISIBLE_DEVICES", "");
    if (!getenv("CUDA_VISIBLE_DEVICES")) for (int i = 0; i < there; i++) found.push_back(i);
    for (size_t at = 0; at < listed.size();) {
      int card = atoi(listed.c_str() + at);
      if (card < 0 || card >= there) break;  // as CUDA does, ignore this one and all behind it
      found.push_back(card);
      size_t comma = listed.find(',', at);
      at = comma == std::string::npos ? listed.size() : comma + 1;
    }
    return found;
  }();
  return visible;
}
static thread_local int device = 0;

EXPORTED cudaError_t cudaGetDeviceCount(int* n) { *n = cards().size(); return *n ? cudaSuccess : cudaErrorNoDevice; }
EXPORTED cudaError_t cudaGetDevice(int* d) { *d = device; return cudaSuccess; }
EXPORTED cudaError_t cudaSetDevice(int d) { device = d; return cudaSuccess; }
EXPORTED cudaError_t cudaDriverGetVersion(int* v) { *v = CUDART_VERSION; return cudaSuccess; }
EXPORTED cudaError_t cudaRuntimeGetVersion(int* v) { *v = CUDART_VERSION; return cudaSuccess; }
EXPORTED cudaError_t cudaDeviceCanAccessPeer(int* v, int, int) { *v = 1; return cudaSuccess; }
EXPORTED cudaError_t cudaDeviceGetPCIBusId(char* text, int n, int d) { snprintf(text, n, "0000:%02x:00.0", cards()[d] + 1); return cudaSuccess; }
EXPORTED cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0; *greatest = -5; return cudaSuccess; }

static size_t capacity() {
  static const size_t bytes = atof(variable("PRETENDED_GPU_GIB", "80")) * (1 << 30);
  return bytes;
}

EXPORTED cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "Pretended H100");
  memset(&p->uuid, cards()[d] + 1, sizeof p->uuid);
  p->pciBusID = cards()[d] + 1;
  p->totalGlobalMem = capacity();
  p->major = 9;
  p->multiProcessorCount = 132;
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsPerMultiProcessor = 2048;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->l2CacheSize = 50 << 20;
  p->textureAlignment = 512;
  p->unifiedAddressing = 1;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int d) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, d);
  switch (which) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

// ---- memory

struct Block { size_t size; int device; };
static std::mutex lock;
static std::map<char*, Block> on_device, pinned;
static std::map<int, size_t> used;

static const Block* block_of(const std::map<char*, Block>& blocks, const void* at) {
  std::lock_guard<std::mutex> guard(lock);
  auto next = blocks.upper_bound((char*)at);
  if (next == blocks.begin()) return nullptr;
  auto found = std::prev(next);
  return (char*)at < found->first + found->second.size ? &found->second : nullptr;
}

EXPORTED cudaError_t cudaMalloc(void** at, size_t size) {
  CHECK_STATE();
  std::lock_guard<std::mutex> guard(lock);
  if (used[device] + size > capacity()) return cudaErrorMemoryAllocation;
  *at = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*at == MAP_FAILED) return cudaErrorMemoryAllocation;
  on_device[(char*)*at] = {size, device};
  used[device] += size;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaFree(void* at) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = on_device.find((char*)at);
  if (found == on_device.end()) return cudaSuccess;
  used[found->second.device] -= found->second.size;
  munmap(at, found->second.size);
  on_device.erase(found);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> guard(lock);
  *total = capacity();
  *free = capacity() - used[device];
  return cudaSuccess;
}

EXPORTED cudaError_t cudaHostRegister(void* at, size_t size, unsigned) {
  std::lock_guard<std::mutex> guard(lock);
  pinned[(char*)at] = {size, 0};
  return cudaSuccess;
}
EXPORTED cudaError_t cudaHostUnregister(void* at) {
  std::lock_guard<std::mutex> guard(lock);
  pinned.erase((char*)at);
  return cudaSuccess;
}
EXPORTED cudaError_t cudaHostAlloc(void** at, size_t size, unsigned flags) {
  *at = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  return cudaHostRegister(*at, size, flags);
}
EXPORTED cudaError_t cudaFreeHost(void* at) {
  cudaHostUnregister(at);
  free(at);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* at) {
  const Block* block = block_of(on_device, at);
  a->type = block ? cudaMemoryTypeDevice : block_of(pinned, at) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  a->device = block ? block->device : 0;
  a->devicePointer = a->hostPointer = (void*)at;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaGetSymbolAddress(void** at, const void* symbol) { *at = (void*)symbol; return cudaSuccess; }

EXPORTED cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t) {
  CHECK_STATE();
  bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyDefault) from_device = block_of(on_device, from), to_device = block_of(on_device, to);
  counts[LAUNCH]++;
  if (from_device && to_device) return cudaSuccess;
  if (!to_device && from_device) memset(to, 0, size);
  if (!to_device && !from_device) memcpy(to, from, size);
  count(block_of(pinned, to_device ? from : to) ? PINNED_COPY : PAGEABLE_COPY);
  return cudaSuccess;
}
EXPORTED cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  count(WAIT);
  return cudaMemcpyAsync(to, from, size, kind, nullptr);
}
EXPORTED cudaError_t cudaMemcpy2DAsync(void*, size_t, const void*, size_t, size_t, size_t, cudaMemcpyKind, cudaStream_t) { counts[LAUNCH]++; return state(); }
EXPORTED cudaError_t cudaMemcpyPeerAsync(void*, int, const void*, int, size_t, cudaStream_t) { counts[LAUNCH]++; return state(); }
EXPORTED cudaError_t cudaMemset(void*, int, size_t) { counts[LAUNCH]++; return state(); }
EXPORTED cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { counts[LAUNCH]++; return state(); }

// ---- streams and events

static void* handle() {
  static std::atomic<long> last{4096};
  return (void*)(last += 16);
}

EXPORTED cudaError_t cudaStreamCreate(cudaStream_t* s) { *s = (cudaStream_t)handle(); return cudaSuccess; }
EXPORTED cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return cudaStreamCreate(s); }
EXPORTED cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { return cudaStreamCreate(s); }
EXPORTED cudaError_t cudaStreamGetPriority(cudaStream_t, int* p) { *p = 0; return cudaSuccess; }
EXPORTED cudaError_t cudaStreamSynchronize(cudaStream_t) { count(WAIT); return state(); }
EXPORTED cudaError_t cudaDeviceSynchronize() { count(WAIT); return state(); }
EXPORTED cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) { *s = cudaStreamCaptureStatusNone; return cudaSuccess; }
EXPORTED cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* s, unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *s = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaEventCreate(cudaEvent_t* e) { *e = (cudaEvent_t)handle(); return cudaSuccess; }
EXPORTED cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return cudaEventCreate(e); }
EXPORTED cudaError_t cudaEventQuery(cudaEvent_t) { return state(); }
EXPORTED cudaError_t cudaEventSynchronize(cudaEvent_t) { count(WAIT); return state(); }
EXPORTED cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { *ms = 1; return cudaSuccess; }
EXPORTED cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) { function(data); return cudaSuccess; }

// ---- kernels

EXPORTED cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { counts[LAUNCH]++; return state(); }
EXPORTED cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { counts[LAUNCH]++; return state(); }
EXPORTED cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) { counts[LAUNCH]++; return state(); }
EXPORTED cudaError_t __cudaLaunchKernel(void*, dim3, dim3, void**, size_t, cudaStream_t) { counts[LAUNCH]++; return state(); }
EXPORTED cudaError_t __cudaGetKernel(void** kernel, const void* function) { *kernel = (void*)function; return cudaSuccess; }

// Compiled <<<…>>> syntax passes its configuration through these.
static thread_local struct { dim3 grid, block; size_t shared; void* stream; } configuration;
EXPORTED unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
EXPORTED cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid, *block = configuration.block, *shared = configuration.shared;
  *(void**)stream = configuration.stream;
  return cudaSuccess;
}
EXPORTED void** __cudaRegisterFatBinary(void*) { return (void**)handle(); }
EXPORTED char __cudaInitModule(void**) { return 1; }

EXPORTED cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->ptxVersion = a->binaryVersion = 90;
  a->numRegs = 32;
  a->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, size_t) { *n = 8; return cudaSuccess; }
EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) { *n = 8; return cudaSuccess; }

// ---- errors

EXPORTED cudaError_t cudaGetLastError() { return state(); }
EXPORTED cudaError_t cudaPeekAtLastError() { return state(); }
EXPORTED const char* cudaGetErrorName(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError"; }
EXPORTED const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorAssert: return "device-side assert triggered";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    default: return "pretended error";
  }
}
EXPORTED cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (result) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaErrorUnknown;
}

// ---- the driver, for kernels that PyTorch compiles with NVRTC

EXPORTED int cuModuleLoadData(void** module, const void*) { *module = handle(); count(COMPILATION); return 0; }
EXPORTED int cuModuleGetFunction(void** function, void*, const char*) { *function = handle(); return 0; }
EXPORTED int cuLaunchKernel() { counts[LAUNCH]++; return 0; }
EXPORTED int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { *flags = 0; *active = 1; return 0; }
EXPORTED int cuCtxGetCurrent(void** context) { *context = (void*)16; return 0; }
EXPORTED int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n) { *n = 8; return 0; }
EXPORTED int cuFuncGetAttribute(int* value) { *value = 32; return 0; }

// ---- cuBLAS; build.py adds its multiplications, which count as launches

EXPORTED int cublasCreate_v2(void** h) { *h = handle(); return 0; }
EXPORTED int cublasGetPointerMode_v2(void*, int* mode) { *mode = 0; return 0; }
EXPORTED int cublasGetMathMode(void*, int* mode) { *mode = 0; return 0; }
EXPORTED int cublasLtMatmulDescCreate(void** h, int, int) { *h = handle(); return 0; }
EXPORTED int cublasLtMatmulPreferenceCreate(void** h) { *h = handle(); return 0; }
EXPORTED int cublasLtMatrixLayoutCreate(void** h, int, unsigned long, unsigned long, long) { *h = handle(); return 0; }
EXPORTED int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results, int* n) {
  memset(results, 0, 96);  // one cublasLtMatmulHeuristicResult_t
  *n = 1;
  return 0;
}

// ---- NCCL

static int called(const char* name, size_t number, int type, int peer) {
  static FILE* log = [] {
    std::string path = variable("PRETENDED_GPU_NCCL", "");
    return path.empty() ? nullptr : fopen((path + "." + variable("RANK", "0")).c_str(), "a");
  }();
  counts[LAUNCH]++;
  if (log) fprintf(log, "%s %zu %d %d\n", name, number, type, peer), fflush(log);
  return 0;
}
struct Id { char bytes[128]; };

EXPORTED int ncclGetVersion(int* version) { *version = 23007; return 0; }
EXPORTED int ncclGetUniqueId(Id* id) { memset(id, 7, sizeof *id); return 0; }
EXPORTED int ncclCommInitRankConfig(void** c, int ranks, Id, int, void*) { *c = handle(); return called("init", ranks, 0, -1); }
EXPORTED int ncclCommInitRank(void** c, int ranks, Id id, int rank) { return ncclCommInitRankConfig(c, ranks, id, rank, nullptr); }
EXPORTED int ncclCommInitRankScalable(void** c, int ranks, int rank, int, Id* id, void*) { return ncclCommInitRankConfig(c, ranks, *id, rank, nullptr); }
EXPORTED int ncclCommCount(void*, int* n) { *n = atoi(variable("WORLD_SIZE", "1")); return 0; }
EXPORTED int ncclCommUserRank(void*, int* n) { *n = atoi(variable("RANK", "0")); return 0; }
EXPORTED int ncclCommGetAsyncError(void*, int* error) { *error = 0; return 0; }
EXPORTED const char* ncclGetErrorString(int) { return "pretended error"; }
EXPORTED const char* ncclGetLastError(void*) { return ""; }
EXPORTED int ncclAllGather(const void*, void*, size_t n, int type, void*, void*) { return called("all-gather", n, type, -1); }
EXPORTED int ncclAllReduce(const void*, void*, size_t n, int type, int, void*, void*) { return called("all-reduce", n, type, -1); }
EXPORTED int ncclAlltoAll(const void*, void*, size_t n, int type, void*, void*) { return called("all-to-all", n, type, -1); }
EXPORTED int ncclBroadcast(const void*, void*, size_t n, int type, int root, void*, void*) { return called("broadcast", n, type, root); }
EXPORTED int ncclBcast(void*, size_t n, int type, int root, void*, void*) { return called("broadcast", n, type, root); }
EXPORTED int ncclReduce(const void*, void*, size_t n, int type, int, int root, void*, void*) { return called("reduce", n, type, root); }
EXPORTED int ncclReduceScatter(const void*, void*, size_t n, int type, int, void*, void*) { return called("reduce-scatter", n, type, -1); }
EXPORTED int ncclSend(const void*, size_t n, int type, int peer, void*, void*) { return called("send", n, type, peer); }
EXPORTED int ncclRecv(void*, size_t n, int type, int peer, void*, void*) { return called("receive", n, type, peer); }
EXPORTED int ncclGroupStart() { return called("begin", 0, 0, -1); }
EXPORTED int ncclGroupEnd() { return called("end", 0, 0, -1); }
