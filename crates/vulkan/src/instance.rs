//! The Vulkan instance: loader, layers, and the messages of the validation layer.
//!
//! ```text
//! libvulkan (opened at run time) ─► Instance ─► physical devices
//!                                      └─ debug messenger ─► Messages
//! ```

use crate::error::VulkanError;
use ash::vk;
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex};

const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

/// Warnings and errors of the validation layer, in order.
#[derive(Clone, Default)]
pub(crate) struct Messages(Arc<Mutex<Vec<String>>>);

impl Messages {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().map(|m| m.clone()).unwrap_or_default()
    }
    fn push(&self, text: String) {
        if let Ok(mut all) = self.0.lock() {
            all.push(text);
        }
    }
}

/// A Vulkan 1.3 instance.
pub(crate) struct Instance {
    // Kept so that the library outlives everything loaded from it.
    pub(crate) entry: ash::Entry,
    pub(crate) raw: ash::Instance,
    messenger: Option<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    pub(crate) messages: Messages,
    /// Where the messenger's callback writes; boxed so that its address stays, freed after the messenger.
    _sink: Box<Messages>,
    /// The validation layer is on.
    pub(crate) validated: bool,
}

impl Instance {
    /// Opens the loader; with `validation`, turns the Khronos layer on if it is installed.
    pub(crate) fn open(validation: bool) -> Result<Arc<Instance>, VulkanError> {
        // SAFETY: libvulkan is a well-behaved system library; its initialisers have no preconditions.
        let entry = unsafe { ash::Entry::load() };
        let entry = entry.map_err(|e| VulkanError::NoLoader { detail: e.to_string() })?;
        let validated = validation && has_layer(&entry, VALIDATION);
        let app = vk::ApplicationInfo::default().application_name(c"zinc").api_version(vk::API_VERSION_1_3);
        let layers: Vec<_> = validated.then_some(VALIDATION.as_ptr()).into_iter().collect();
        let extensions: Vec<_> = validated.then_some(ash::ext::debug_utils::NAME.as_ptr()).into_iter().collect();
        let info = vk::InstanceCreateInfo::default()
            .application_info(&app)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions);
        // SAFETY: all pointers in `info` live until the call returns.
        let raw = unsafe { entry.create_instance(&info, None) };
        let raw = raw.map_err(|e| VulkanError::NoDriver { detail: format!("{e:?}") })?;
        let messages = Messages::default();
        let sink = Box::new(messages.clone());
        let messenger = if validated { Some(messenger(&entry, &raw, &sink)?) } else { None };
        Ok(Arc::new(Instance { entry, raw, messenger, messages, _sink: sink, validated }))
    }

    /// All physical devices, in the loader's order.
    pub(crate) fn physical_devices(&self) -> Result<Vec<vk::PhysicalDevice>, VulkanError> {
        // SAFETY: the instance is alive.
        let found = unsafe { self.raw.enumerate_physical_devices() };
        found.map_err(|e| VulkanError::NoDriver { detail: format!("{e:?}") })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: devices hold an Arc of the instance, so none is left; the messenger goes before the instance.
        unsafe {
            if let Some((ext, messenger)) = self.messenger.take() {
                ext.destroy_debug_utils_messenger(messenger, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}

fn has_layer(entry: &ash::Entry, name: &CStr) -> bool {
    // SAFETY: the loader is open.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }.unwrap_or_default();
    layers.iter().any(|l| l.layer_name_as_c_str() == Ok(name))
}

fn messenger(
    entry: &ash::Entry,
    instance: &ash::Instance,
    sink: &Messages,
) -> Result<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT), VulkanError> {
    let ext = ash::ext::debug_utils::Instance::new(entry, instance);
    let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(vk::DebugUtilsMessageSeverityFlagsEXT::WARNING | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR)
        .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE)
        .pfn_user_callback(Some(receive))
        .user_data(sink as *const Messages as *mut c_void);
    // SAFETY: `sink` is boxed in the Instance and outlives the messenger.
    let created = unsafe { ext.create_debug_utils_messenger(&info, None) };
    Ok((ext, created.map_err(VulkanError::of("vkCreateDebugUtilsMessengerEXT"))?))
}

unsafe extern "system" fn receive(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    sink: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes valid callback data, and the sink given at creation.
    unsafe {
        let text = (*data).message_as_c_str().map(|t| t.to_string_lossy().into_owned());
        (*(sink as *const Messages)).push(text.unwrap_or_default());
    }
    vk::FALSE
}
