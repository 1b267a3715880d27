/* A stand-in for pyxis: its options, and the parts of its behaviour that a launcher depends on. No container is imported or run.
 *
 *  - An image is a text file of KEY=VALUE lines, the ENV of the image: <images>/<name with / # : as _>, or for an image given as a
 *    path (a leading / or ./) that very file, as a .sqsh would be. An unknown image fails as a failed import does.
 *  - Environment: the job's, where the image's value wins, except for the names in --container-env. LANG, LANGUAGE and LC_ALL go.
 *  - File system: the node's own, in which the folders of "hide" are empty, and the home folder too unless --container-mount-home.
 *    The folders of "image" stay whatever is hidden (the Python that the tests run). It is read-only without --container-writable.
 *    /tmp is the node's, as pyxis makes it.
 *  - --container-mounts brings folders and files back: SRC[:DST[:FLAGS]], flags joined with +, of which "ro" counts.
 *  - --container-workdir is entered, else /.
 *
 * plugstack.conf: required <this>.so images=FOLDER hide=A:B image=C:D
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

/* glibc's sys/mount.h and linux/mount.h, which has open_tree's flags, cannot be had together. */
int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);

#define MAX_MOUNTS 256
#define MAX_VALUE (128 * 1024) /* the kernel's own limit for one variable */

struct bind {
    int tree; /* what open_tree(2) gave */
    int is_folder, read_only;
    char target[PATH_MAX];
};

static char *image, *mounts, *workdir, *environment;
static int mount_home = -1, writable = -1;
static const char *images = "/", *hide = "", *in_image = "";
static struct bind binds[MAX_MOUNTS];
static int bind_count;

static int fail(const char *what, const char *which)
{
    slurm_error("pyxis: %s: %s: %s", what, which, strerror(errno));
    return -1;
}

/* ---- options ---- */

static int keep(char **place, const char *option, const char *value)
{
    if (value == NULL || *value == '\0') {
        slurm_error("pyxis: --%s: argument required", option);
        return -1;
    }
    if (*place != NULL && strcmp(*place, value) != 0) {
        slurm_error("pyxis: --%s specified multiple times", option);
        return -1;
    }
    *place = strdup(value);
    return 0;
}

static int choose(int *place, const char *option, int value)
{
    if (*place != -1 && *place != value) {
        slurm_error("pyxis: --%s and its contrary were specified", option);
        return -1;
    }
    *place = value;
    return 0;
}

static int on_image(int v, const char *arg, int remote) { (void)v, (void)remote; return keep(&image, "container-image", arg); }
static int on_mounts(int v, const char *arg, int remote) { (void)v, (void)remote; return keep(&mounts, "container-mounts", arg); }
static int on_workdir(int v, const char *arg, int remote) { (void)v, (void)remote; return keep(&workdir, "container-workdir", arg); }
static int on_env(int v, const char *arg, int remote) { (void)v, (void)remote; return keep(&environment, "container-env", arg); }
static int on_home(int v, const char *arg, int remote) { (void)arg, (void)remote; return choose(&mount_home, "container-mount-home", v); }
static int on_writable(int v, const char *arg, int remote) { (void)arg, (void)remote; return choose(&writable, "container-writable", v); }

static struct spank_option options[] = {
    {"container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "[pyxis] the image to use", 1, 0, on_image},
    {"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "[pyxis] bind mounts inside the container", 1, 0, on_mounts},
    {"container-workdir", "PATH", "[pyxis] working directory inside the container", 1, 0, on_workdir},
    {"container-env", "NAME[,NAME...]", "[pyxis] variables of the job that win over the image's", 1, 0, on_env},
    {"container-mount-home", NULL, "[pyxis] mount the home folder", 0, 1, on_home},
    {"no-container-mount-home", NULL, "[pyxis] do not mount the home folder", 0, 0, on_home},
    {"container-writable", NULL, "[pyxis] make the container's file system writable", 0, 1, on_writable},
    {"container-readonly", NULL, "[pyxis] make the container's file system read-only", 0, 0, on_writable},
};

int slurm_spank_init(spank_t sp, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "images=", 7) == 0)
            images = strdup(argv[i] + 7);
        else if (strncmp(argv[i], "hide=", 5) == 0)
            hide = strdup(argv[i] + 5);
        else if (strncmp(argv[i], "image=", 6) == 0)
            in_image = strdup(argv[i] + 6);
    }
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (spank_option_register(sp, &options[i]) != ESPANK_SUCCESS)
            return fail("can't register option", options[i].name);
    return 0;
}

/* ---- environment ---- */

static int in_list(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *p = list; p != NULL && *p != '\0';) {
        size_t n = strcspn(p, ",");
        if (n == length && strncmp(p, name, n) == 0)
            return 1;
        p += n + (p[n] == ',');
    }
    return 0;
}

static int find_image(char *path, size_t size)
{
    const char *name = strncmp(image, "docker://", 9) == 0 ? image + 9 : image;
    if (*name == '/' || strncmp(name, "./", 2) == 0) {
        snprintf(path, size, "%s", name);
    } else {
        int start = snprintf(path, size, "%s/", images);
        snprintf(path + start, size - start, "%s", name);
        for (char *p = path + start; *p != '\0'; p++)
            if (strchr("/#:", *p) != NULL)
                *p = '_';
    }
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
        slurm_error("pyxis: failed to import docker image: %s (the test bed has no file %s)", name, path);
        return -1;
    }
    return 0;
}

static int take_environment(spank_t sp, const char *path)
{
    static char line[MAX_VALUE];
    spank_unsetenv(sp, "LANG");
    spank_unsetenv(sp, "LANGUAGE");
    spank_unsetenv(sp, "LC_ALL");
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return fail("can't read the image", path);
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *value = strchr(line, '=');
        if (value == NULL)
            continue;
        *value++ = '\0';
        spank_setenv(sp, line, value, !in_list(environment, line));
    }
    fclose(file);
    return 0;
}

/* ---- file system ---- */

static void make_target(const char *path, int is_folder)
{
    char partial[PATH_MAX];
    snprintf(partial, sizeof partial, "%s", path);
    for (char *p = partial + 1; *p != '\0'; p++)
        if (*p == '/') {
            *p = '\0';
            mkdir(partial, 0755);
            *p = '/';
        }
    if (is_folder) {
        mkdir(partial, 0755);
    } else {
        int fd = open(partial, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        if (fd >= 0)
            close(fd);
    }
}

/* Takes hold of a source before anything is hidden; attach() puts it in its place afterwards. */
static int detach(const char *source, const char *target, int read_only)
{
    struct stat st;
    if (bind_count == MAX_MOUNTS) {
        slurm_error("pyxis: more than %d mounts", MAX_MOUNTS);
        return -1;
    }
    struct bind *b = &binds[bind_count];
    if (stat(source, &st) != 0)
        return fail("container start failed: mount", source);
    b->tree = syscall(SYS_open_tree, AT_FDCWD, source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (b->tree < 0)
        return fail("open_tree", source);
    b->is_folder = S_ISDIR(st.st_mode);
    b->read_only = read_only;
    snprintf(b->target, sizeof b->target, "%s", target);
    bind_count++;
    return 0;
}

static int detach_mounts(void)
{
    char *rest = strdup(mounts == NULL ? "" : mounts), *entry;
    while ((entry = strsep(&rest, ",")) != NULL) {
        char *source = strsep(&entry, ":"), *target = strsep(&entry, ":"), *flag;
        int read_only = 0;
        if (*source == '\0')
            continue;
        while ((flag = strsep(&entry, "+")) != NULL)
            read_only |= strcmp(flag, "ro") == 0;
        if (detach(source, target == NULL ? source : target, read_only) != 0)
            return -1;
    }
    return 0;
}

static int detach_image_folders(void)
{
    char *rest = strdup(in_image), *folder;
    while ((folder = strsep(&rest, ":")) != NULL)
        if (*folder != '\0' && detach(folder, folder, 0) != 0)
            return -1;
    return 0;
}

static int hide_folder(const char *folder)
{
    struct stat st;
    if (*folder == '\0' || strcmp(folder, "/") == 0 || stat(folder, &st) != 0)
        return 0;
    return mount("tmpfs", folder, "tmpfs", 0, "size=16m,mode=755") == 0 ? 0 : fail("can't hide", folder);
}

static int hide_folders(spank_t sp)
{
    char home[PATH_MAX] = "", *rest = strdup(hide), *folder;
    while ((folder = strsep(&rest, ":")) != NULL)
        if (hide_folder(folder) != 0)
            return -1;
    if (mount_home != 1 && spank_getenv(sp, "HOME", home, sizeof home) == ESPANK_SUCCESS)
        return hide_folder(home);
    return 0;
}

static int attach(const struct bind *b)
{
    make_target(b->target, b->is_folder);
    if (syscall(SYS_move_mount, b->tree, "", AT_FDCWD, b->target, MOVE_MOUNT_F_EMPTY_PATH) != 0)
        return fail("can't mount", b->target);
    if (b->read_only && mount(NULL, b->target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) != 0)
        return fail("can't mount read-only", b->target);
    return 0;
}

static int enter_container(spank_t sp)
{
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return fail("container start failed", "unshare");
    if (mount("/tmp", "/tmp", NULL, MS_BIND | MS_REC, NULL) != 0) /* a mount of its own: it stays writable below */
        return fail("can't mount", "/tmp");
    if (detach_image_folders() != 0 || detach_mounts() != 0 || hide_folders(sp) != 0)
        return -1;
    for (int i = 0; i < bind_count; i++)
        if (attach(&binds[i]) != 0)
            return -1;
    if (writable != 1 && mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) != 0)
        return fail("container start failed", "read-only root");
    return 0;
}

/* Before Slurm looks for the program, so that it is looked for in the container; the environment is set here too, ahead of it. */
int slurm_spank_task_init_privileged(spank_t sp, int argc, char **argv)
{
    char path[PATH_MAX];
    (void)argc, (void)argv;
    if (spank_context() != S_CTX_REMOTE || image == NULL)
        return 0;
    if (find_image(path, sizeof path) != 0 || take_environment(sp, path) != 0)
        return -1;
    return enter_container(sp);
}

/* Last of all: Slurm enters the job's folder after the step above. */
int slurm_spank_task_init(spank_t sp, int argc, char **argv)
{
    const char *folder = workdir == NULL ? "/" : workdir;
    (void)sp, (void)argc, (void)argv;
    if (spank_context() != S_CTX_REMOTE || image == NULL)
        return 0;
    return chdir(folder) == 0 ? 0 : fail("couldn't chdir", folder);
}
